"""Compares an executor over mutual TLS with the native backend in this process.

    python benchmarks/executor.py [--executions 1000] [--concurrency 64] [--rounds 5]

Both run the same short program with pandas in open sandboxes, in alternation, so that other load
affects both. A second part times single executions of the executor at high concurrency. Every
answer is checked.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from assay.auth.certificates import (
    make_authority,
    make_client_certificate,
    make_server_certificate,
)
from assay.contracts.execution import Isolation, Limits, PythonCode
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.sandbox.remote.backend import open_remote
from assay.settings.executor import RemoteSettings
from assay.settings.load import load_settings
from assay.wiring import open_backend

SOURCE = "import pandas as pd\nprint(pd.Series(range({number})).sum())"
SANDBOXES = 4


@asynccontextmanager
async def open_executor(folder: Path) -> AsyncGenerator[SandboxBackend]:
    """Start an executor in its own process, and connect to it with mutual TLS."""
    ca = make_authority(folder)
    server = make_server_certificate(folder, ("127.0.0.1",), days=1)
    client = make_client_certificate(folder, "benchmark", days=1)
    command = [sys.executable, "-m", "assay", "executor", "serve", "--port", "0", "--json"]
    flags = ["--cert", server.cert, "--key", server.key, "--client-ca", ca, "--metrics-port", "0"]
    environment = {
        **os.environ,
        "ASSAY_RUNTIME_DIR": str(folder / "runtime"),
        "ASSAY_EXECUTOR__AUDIT_FILE": str(folder / "audit.jsonl"),
        "ASSAY_SANDBOX__BACKEND": "native",
    }
    process = subprocess.Popen(  # noqa: ASYNC220 - started once, before anything is measured
        [*command, *map(str, flags)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout  # noqa: S101 - stdout is a pipe
        address = json.loads(process.stdout.readline())["address"]
        remote = RemoteSettings(addresses=(address,), ca=ca, cert=client.cert, key=client.key)
        async with open_remote(remote, Isolation.RESTRICTED) as backend:
            yield backend
    finally:
        process.terminate()
        process.wait(30)


class Load:
    """Runs the program many times on one backend, and checks every answer."""

    def __init__(self, sandboxes: list[Sandbox]) -> None:
        self._sandboxes = sandboxes
        self.latencies_s: list[float] = []
        self.wrong = 0

    async def run(self, executions: int, concurrency: int) -> float:
        """Return the number of answers per second."""
        numbers = iter(range(executions))
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for worker in range(concurrency):
                sandbox = self._sandboxes[worker % len(self._sandboxes)]
                tasks.start_soon(self._work, sandbox, numbers)
        return executions / (time.perf_counter() - began)

    async def _work(self, sandbox: Sandbox, numbers: "itertools.count[int]") -> None:
        for number in numbers:
            began = time.perf_counter()
            program = PythonCode(source=SOURCE.format(number=number).encode())
            result = await sandbox.run(program)
            self.latencies_s.append(time.perf_counter() - began)
            self.wrong += result.stdout != f"{sum(range(number))}\n"


async def open_load(stack: AsyncExitStack, backend: SandboxBackend) -> Load:
    sandboxes = [
        await stack.enter_async_context(backend.open_sandbox(Limits())) for _ in range(SANDBOXES)
    ]
    load = Load(sandboxes)
    await load.run(SANDBOXES * 4, SANDBOXES)
    load.latencies_s.clear()
    return load


async def measure(executions: int, concurrency: int, rounds: int, batch: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            native = await open_load(
                stack, await stack.enter_async_context(open_backend(load_settings().sandbox))
            )
            remote = await open_load(
                stack, await stack.enter_async_context(open_executor(Path(folder)))
            )
            rates: dict[str, list[float]] = {"native": [], "remote": []}
            for turn in range(rounds):
                order = (("native", native), ("remote", remote))
                for name, load in order if turn % 2 else reversed(order):
                    rates[name].append(await load.run(batch, 8))
            ratios = [there / here for here, there in zip(*rates.values(), strict=True)]
            remote.latencies_s.clear()
            rate = await remote.run(executions, concurrency)
            latencies = sorted(remote.latencies_s)
    return {
        "native_per_s": round(statistics.median(rates["native"]), 1),
        "remote_per_s": round(statistics.median(rates["remote"]), 1),
        "remote_share": round(statistics.median(ratios), 3),
        "shares": [round(ratio, 3) for ratio in ratios],
        "executions": executions,
        "concurrency": concurrency,
        "answered": len(latencies),
        "wrong": remote.wrong + native.wrong,
        "rate_per_s": round(rate, 1),
        "p50_ms": round(1000 * latencies[len(latencies) // 2], 1),
        "p99_ms": round(1000 * latencies[int(len(latencies) * 0.99)], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=150)
    given = parser.parse_args()
    found = anyio.run(measure, given.executions, given.concurrency, given.rounds, given.batch)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
