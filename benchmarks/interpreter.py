"""Compares a cell in a warm session with pandas with a new Python process in a container.

    .venv/bin/python benchmarks/interpreter.py [CELLS]

Measures the available alternatives: `docker exec` in a running container of the image from
benchmarks/docker_image.sh, and ipykernel if it is installed.
"""

import importlib.util
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import anyio

from assay.contracts.execution import Limits
from assay.settings.load import SandboxSettings
from assay.wiring import open_backend

IMAGE = "assay-bench-python"
IMPORTS = "import pandas as pd\ntable = pd.DataFrame({'n': range(1000)})"
CELL = "table['n'].sum()"


def medians(times_s: list[float]) -> str:
    ordered = sorted(times_s)
    worst = ordered[int(len(ordered) * 0.95)]
    return f"median {statistics.median(ordered) * 1e3:8.2f} ms   95 % {worst * 1e3:8.2f} ms"


async def measure_native(cells: int) -> list[float]:
    settings = SandboxSettings(backend="native", preload=(("numpy", "pandas"),))
    limits = Limits(memory_mb=1024)
    async with open_backend(settings) as backend, backend.open_sandbox(limits) as sandbox:
        # Wait until the zygote has its libraries; an interpreter does not wait for them.
        await anyio.sleep(5)
        async with sandbox.open_interpreter() as session:
            assert (await session.run_cell(IMPORTS)).succeeded  # noqa: S101
            times: list[float] = []
            for _ in range(cells):
                begun = time.perf_counter()
                assert (await session.run_cell(CELL)).succeeded  # noqa: S101
                times.append(time.perf_counter() - begun)
            return times


def repeat(act: Callable[[], object], times: int) -> list[float]:
    taken: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begun)
    return taken


def measure_docker(times: int) -> list[float] | None:
    docker = shutil.which("docker")
    known = (
        docker
        and not subprocess.run(
            [docker, "image", "inspect", IMAGE], capture_output=True, check=False
        ).returncode
    )
    if not docker or not known:
        return None
    start = [docker, "run", "--rm", "-d", "--network", "none", IMAGE, "sleep", "600"]
    name = subprocess.run(start, capture_output=True, check=True, text=True).stdout.strip()
    program = [docker, "exec", name, "python3", "-c", "import pandas"]
    try:
        subprocess.run(program, check=True)
        return repeat(lambda: subprocess.run(program, check=True), times)
    finally:
        subprocess.run([docker, "kill", name], capture_output=True, check=False)


def measure_kernel(cells: int) -> list[float] | None:
    if not all(map(importlib.util.find_spec, ("ipykernel", "jupyter_client"))):
        return None
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    try:
        client.execute_interactive(IMPORTS)
        return repeat(lambda: client.execute_interactive(CELL, output_hook=id), cells)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    native = anyio.run(measure_native, cells)
    print(f"a cell in a session, with its fork      {medians(native)}")
    others = {
        "docker exec python -c 'import pandas'": measure_docker(max(5, cells // 10)),
        "a cell of ipykernel, no isolation": measure_kernel(cells),
    }
    for name, times in others.items():
        if times is None:
            print(f"{name:38}  not here")
        else:
            ratio = statistics.median(times) / statistics.median(native)
            print(f"{name:38}  {medians(times)}   {ratio:.1f} times a cell")


if __name__ == "__main__":
    main()
