"""A program ends when no call waits for it any more; a call whose executor ends is explained."""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import grpc.aio
import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.rpc.client_sandbox import BrokenOffError, RemoteExecution
from assay.sandbox.rpc.messages import executor_pb2
from tests.support.executor_stub import ExecutorStub
from tests.support.executors import open_served
from tests.support.slow_sandboxes import OneSandbox, SlowSandbox


def request(execution_id: str) -> executor_pb2.ExecuteRequest:
    return executor_pb2.ExecuteRequest(
        execution_id=execution_id,
        program=executor_pb2.Program(python={"source": b""}),
        fresh=executor_pb2.FreshSandbox(limits=executor_pb2.Limits(wall_s=500)),
    )


CLIENT = """
import sys
import grpc
from assay.sandbox.rpc.messages import executor_pb2 as pb
from tests.support.executor_stub import ExecutorStub
with grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}") as channel:
    ExecutorStub(channel).Execute(pb.ExecuteRequest(
        execution_id="of-another-process",
        program=pb.Program(python={"source": b""}),
        fresh=pb.FreshSandbox(limits=pb.Limits(wall_s=500)),
    ))
"""


async def test_calls_that_are_given_up_end_their_programs_and_leave_the_queue(
    tmp_path: Path,
) -> None:
    slow = SlowSandbox()
    async with (
        open_served(OneSandbox(slow), tmp_path, client_executions=1) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = ExecutorStub(channel)
        running = stub.Execute(request("the-one-that-runs"))
        await slow.begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Execute(request("the-one-that-waits"), timeout=0.1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        running.cancel()

        with anyio.fail_after(60):
            await slow.killed.wait()
        assert await executor.drain(20)

    assert len(slow.programs) == 1


async def test_a_lost_connection_ends_the_program(tmp_path: Path) -> None:
    slow = SlowSandbox()
    async with open_served(OneSandbox(slow), tmp_path) as executor:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel:
            stream = ExecutorStub(channel).ExecuteStream(request("a-stream-of-output"))
            assert (await stream.read()).output.data == b"begun"

        with anyio.fail_after(60):
            await slow.killed.wait()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="terminated"),
        # Its connection stays open, as when its machine or the network fails.
        pytest.param(signal.SIGSTOP, id="frozen"),
    ],
)
async def test_the_programs_of_a_client_process_that_is_gone_are_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    slow = SlowSandbox()
    async with open_served(OneSandbox(slow), tmp_path) as executor:
        command = [sys.executable, "-c", CLIENT, str(executor.port)]
        async with await anyio.open_process(command, stdout=None, stderr=None) as client:
            try:
                with anyio.fail_after(60):
                    await slow.begun.wait()
                client.send_signal(number)
                # By itself, gRPC gives a frozen client more than a minute.
                with anyio.fail_after(60):
                    await slow.killed.wait()
                assert await executor.drain(20)
            finally:
                with suppress(ProcessLookupError):
                    client.kill()


async def test_a_lost_executor_leaves_the_output_so_far_and_the_error_as_json(
    tmp_path: Path,
) -> None:
    slow = SlowSandbox()
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "ASSAY_SANDBOX__BACKEND": "remote",
    }
    async with open_served(OneSandbox(slow), tmp_path) as executor:
        environment["ASSAY_SANDBOX__REMOTE__ADDRESSES"] = f"127.0.0.1:{executor.port}"
        words = ("-m", "assay", "sandbox", "run", "--isolation", "none", "--json", "--", "true")
        async with anyio.create_task_group() as tasks:

            async def lose() -> None:
                await slow.begun.wait()
                await executor.stop()

            tasks.start_soon(lose)
            with anyio.fail_after(90):
                done = await anyio.run_process(
                    [sys.executable, *words], env=environment, check=False
                )

    told = json.loads(done.stdout)
    assert (done.returncode, told["stdout"], told["dispatch"]) == (4, "begun", "outcome_unknown")
    assert told["error"] in done.stderr.decode()


class _Forgetful:
    """A far side that was started again, and does not know the execution."""

    async def ask(self, *asked: object, timeout_s: float | None = None) -> Any:
        raise NotImplementedError

    @asynccontextmanager
    async def stream(self, *asked: object) -> AsyncGenerator[AsyncIterator[Any]]:
        del asked
        raise SandboxUnavailableError("there is no such execution", dispatch="never_started")
        yield

    def distrust(self, why: str) -> None:
        raise NotImplementedError


async def test_a_program_whose_executor_was_lost_is_said_to_have_perhaps_run() -> None:
    execution = RemoteExecution(_Forgetful(), 1000, print)

    with pytest.raises(SandboxUnavailableError, match="may have run to its end") as caught:
        await execution.resume(BrokenOffError("connection lost"))

    assert caught.value.dispatch == "outcome_unknown"
    assert "not run a second time" in caught.value.hint
