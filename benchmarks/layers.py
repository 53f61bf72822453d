"""Compares sandboxes that start with a mounted layer with those that start with a copy of it.

    .venv/bin/python benchmarks/layers.py [FILES...]

Measures opening, a first program that changes one file, and `changes()`, for trees of 100, 1,000
and 7,000 files of 10 KB. The methods take turns, so that their ratio says more than the times.
"""

import itertools
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import anyio

from assay.contracts.execution import Limits, PythonCode, SandboxSpec
from assay.contracts.ports import SandboxBackend
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.native.host.backend import NativeBackend
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend

ROUNDS = 5
PER_FOLDER = 50
CONTENT = bytes(10_000)
PROGRAM = PythonCode(source=b"open('0/0', 'a').write('more')")
STEPS = ("open", "program", "changes", "close")


def create_layer(folder: Path, files: int) -> WorkspaceLayer:
    for number in range(files):
        path = folder / str(number // PER_FOLDER) / str(number % PER_FOLDER)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
    return WorkspaceLayer(sha256(str(folder).encode()).hexdigest(), folder)


async def measure(backend: SandboxBackend, layer: WorkspaceLayer) -> list[float]:
    """Return the durations of all steps in milliseconds."""
    times = [time.perf_counter()]
    async with AsyncExitStack() as opened:
        opening = backend.open_sandbox(Limits(), SandboxSpec(layer=layer))
        sandbox = await opened.enter_async_context(opening)
        times.append(time.perf_counter())
        assert (await sandbox.run(PROGRAM)).succeeded  # noqa: S101
        times.append(time.perf_counter())
        changes = await sandbox.changes()
        assert len(changes.written) == 1, changes  # noqa: S101
        times.append(time.perf_counter())
    times.append(time.perf_counter())
    return [(after - before) * 1e3 for before, after in itertools.pairwise(times)]


async def main(sizes: list[int]) -> None:
    async with open_backend(SandboxSettings(backend="native")) as backend:
        assert isinstance(backend, NativeBackend)  # noqa: S101
        engine = await backend.start()
        with tempfile.TemporaryDirectory() as name:
            for files in sizes:
                layer = create_layer(Path(name) / str(files), files)
                taken: dict[bool, list[list[float]]] = {True: [], False: []}
                for _ in range(ROUNDS):
                    for mounted, rounds in taken.items():
                        engine.mounts_layers = mounted
                        rounds.append(await measure(backend, layer))
                for mounted, rounds in taken.items():
                    medians = map(statistics.median, zip(*rounds, strict=True))
                    steps = zip(STEPS, medians, strict=True)
                    parts = "  ".join(f"{step} {value:8.1f} ms" for step, value in steps)
                    print(f"{files:6} files  {'mounted' if mounted else 'copied '}  {parts}")


if __name__ == "__main__":
    anyio.run(main, [int(size) for size in sys.argv[1:]] or [100, 1000, 7000])
