"""Executions on the far side: how many messages their output becomes."""

import anyio
from anyio.lowlevel import checkpoint

from assay.contracts.execution import ExecutionResult, OutputChunk
from assay.contracts.ports import OnOutput
from assay.sandbox.rpc.executions import EVENTS_EVERY_S, Execution
from tests.doubles.fake_sandbox import answer_with

WRITES = 5000


async def write_single_bytes(on_output: OnOutput) -> ExecutionResult:
    for _ in range(WRITES):
        on_output(OutputChunk(stream="stdout", data=b"x"))
        # Whoever reads the output has a turn after each byte, as on a busy machine.
        await checkpoint()
        await checkpoint()
    return answer_with("x" * WRITES)


async def test_single_bytes_are_collected_into_few_messages() -> None:
    execution = Execution("one", WRITES)
    begun = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(execution.carry_out, write_single_bytes)
        events = [event async for event in execution.events()]
    elapsed_s = anyio.current_time() - begun

    output = [event.output for event in events if event.HasField("output")]
    assert b"".join(piece.data for piece in output) == b"x" * WRITES
    assert len(output) <= 3 + elapsed_s / EVENTS_EVERY_S


async def test_the_first_output_and_the_end_are_sent_at_once() -> None:
    execution = Execution("one", 10)
    read = anyio.Event()

    async def write_and_wait(on_output: OnOutput) -> ExecutionResult:
        on_output(OutputChunk(stream="stdout", data=b"x"))
        await read.wait()
        return answer_with("x")

    kinds: list[str | None] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(execution.carry_out, write_and_wait)
        async for event in execution.events():
            kinds.append(event.WhichOneof("event"))
            read.set()

    assert kinds == ["output", "result"]
