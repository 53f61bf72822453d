"""One of three executors is killed under load: no wrong result, no hang, and the others go on."""

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import Limits, OutputChunk, PythonCode
from assay.contracts.ports import SandboxBackend
from tests.support.executors import (
    Certificates,
    ExecutorProcess,
    make_certificates,
    open_client,
    open_process,
)

WORKERS = 9
ROUNDS = 6


@pytest.mark.slow
async def test_one_of_three_executors_is_killed_under_load(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    seen: Counter[str] = Counter()
    half_way = anyio.Event()

    async with AsyncExitStack() as stack:
        executors = await _three_executors(stack, tmp_path, certificates)
        ports = [executor.port for executor in executors]
        remote = await stack.enter_async_context(
            open_client(*ports, **certificates.client("alice"))
        )
        with anyio.fail_after(90):
            async with anyio.create_task_group() as tasks:
                for worker in range(WORKERS):
                    tasks.start_soon(_work, remote, worker, seen, half_way)
                await half_way.wait()
                executors[0].process.kill()

    assert seen["wrong"] == 0
    assert seen["right"] + seen["outcome_unknown"] + seen["never_started"] == WORKERS * ROUNDS
    # Only what was under way on the lost one is unknown; all later work went to the others.
    assert seen["outcome_unknown"] <= WORKERS
    assert seen["right"] >= WORKERS * ROUNDS - 2 * WORKERS
    assert seen["outcome_unknown"] + seen["never_started"] > 0, "nothing ran where it was killed"


async def _three_executors(
    stack: AsyncExitStack, folder: Path, certificates: Certificates
) -> list[ExecutorProcess]:
    executors: list[ExecutorProcess] = []

    async with anyio.create_task_group() as starting:

        async def start(number: int) -> None:
            place = folder / f"executor-{number}"
            opening = open_process(place, **certificates.server())
            executors.append(await opening.__aenter__())
            stack.push_async_exit(opening)

        for number in range(3):
            starting.start_soon(start, number)
    return executors


async def _work(
    remote: SandboxBackend, worker: int, seen: Counter[str], half_way: anyio.Event
) -> None:
    for turn in range(ROUNDS):
        if turn == ROUNDS // 2:
            half_way.set()
        try:
            seen[await _one_execution(remote, worker * ROUNDS + turn)] += 1
        except SandboxUnavailableError as error:
            seen[error.dispatch] += 1


async def _one_execution(remote: SandboxBackend, number: int) -> str:
    heard: list[OutputChunk] = []
    source = f"import time\nprint({number}, flush=True)\ntime.sleep(0.2)\nprint({number} ** 2)"
    async with remote.open_sandbox(Limits(wall_s=30, memory_mb=128)) as sandbox:
        result = await sandbox.run(PythonCode(source=source.encode()), on_output=heard.append)
    told = b"".join(chunk.data for chunk in heard)
    expected = f"{number}\n{number**2}\n"
    return "right" if result.stdout == told.decode() == expected else "wrong"
