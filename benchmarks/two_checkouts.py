"""Compares the sandbox of two checkouts in one interleaved run.

    python benchmarks/two_checkouts.py OLD [NEW] [--rounds N] [--batch N]

OLD and NEW are folders of checkouts; NEW is this one by default. Each checkout has one process with
one engine. They alternate, so that both have the same load of the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio

HERE: Final = Path(__file__).resolve()
_SERVE: Final = "--serve"
_WARM_UP: Final = 20
_AT_ONCE: Final = 4
_MOST_WORSE: Final = 0.05
_SETTINGS: Final = ("assay.settings.load", "assay.settings")
"""The module of the sandbox settings, in this checkout and before it moved."""


class Checkout:
    """One checkout, measured by a process that imports Assay from it."""

    def __init__(self, folder: Path) -> None:
        source = folder.resolve() / "src"
        if not (source / "assay").is_dir():
            raise SystemExit(f"{folder} is no checkout: {source / 'assay'} does not exist")
        self.latencies_s: list[float] = []
        self.rates: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), _SERVE, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )

    def measure(self, batch: int) -> None:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(f"{batch}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a checkout could not be measured; see above")
        latencies_s, rate = json.loads(line)
        self.latencies_s += latencies_s
        self.rates.append(rate)

    def close(self) -> None:
        self._process.communicate()


async def _serve(source: str) -> None:
    from assay import wiring
    from assay.contracts.execution import Limits, PythonCode

    if not Path(wiring.__file__).is_relative_to(source):
        raise SystemExit(f"Assay was imported from {wiring.__file__}, not from {source}")
    settings = _import_settings().SandboxSettings(backend="native")
    program = PythonCode(source=b"print(1)")
    async with (
        wiring.open_backend(settings) as backend,
        backend.open_sandbox(Limits()) as sandbox,
    ):

        async def run() -> float:
            begun = time.perf_counter()
            await sandbox.run(program)
            return time.perf_counter() - begun

        async def run_several(number: int) -> None:
            for _ in range(number):
                await run()

        await run_several(_WARM_UP)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            batch = int(line)
            latencies_s = [await run() for _ in range(batch)]
            begun = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for _ in range(_AT_ONCE):
                    tasks.start_soon(run_several, batch)
            rate = batch * _AT_ONCE / (time.perf_counter() - begun)
            print(json.dumps([latencies_s, rate]), flush=True)


def _import_settings() -> Any:
    """Return the module that has `SandboxSettings` in this checkout."""
    for name in _SETTINGS:
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise SystemExit(f"a checkout has none of the modules {', '.join(_SETTINGS)}")


def _compare(old: Path, new: Path, *, rounds: int, batch: int) -> int:
    checkouts = [Checkout(old), Checkout(new)]
    for number in range(rounds):
        # Each is first as often as second.
        for checkout in checkouts if number % 2 == 0 else reversed(checkouts):
            checkout.measure(batch)
    for checkout in checkouts:
        checkout.close()
    before, after = ((median(one.latencies_s), median(one.rates)) for one in checkouts)
    return compare(before, after)


def compare(before: tuple[float, float], after: tuple[float, float]) -> int:
    """Print p50 in seconds and executions per second of both; return 1 if one is clearly worse."""
    slower = after[0] / before[0] - 1
    fewer = 1 - after[1] / before[1]
    print(f"p50         {before[0] * 1e3:8.3f} ms -> {after[0] * 1e3:8.3f} ms  ({slower:+.1%})")
    print(f"throughput  {before[1]:8.1f} /s -> {after[1]:8.1f} /s  ({-fewer:+.1%})")
    return int(max(slower, fewer) > _MOST_WORSE)


def main() -> int:
    if sys.argv[1:2] == [_SERVE]:
        anyio.run(_serve, sys.argv[2])
        return 0
    parser = argparse.ArgumentParser(description="Compare the sandbox of two checkouts.")
    parser.add_argument("old", type=Path, help="the folder of the checkout to compare with")
    parser.add_argument("new", type=Path, nargs="?", default=HERE.parents[1])
    parser.add_argument("--rounds", type=int, default=40, help="turns of each [default: 40]")
    parser.add_argument("--batch", type=int, default=25, help="programs in a turn [default: 25]")
    options = parser.parse_args()
    return _compare(options.old, options.new, rounds=options.rounds, batch=options.batch)


if __name__ == "__main__":
    sys.exit(main())
