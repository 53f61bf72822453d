"""A relay does what its backend does, many things at once, and says the truth when it breaks."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import PurePosixPath

import anyio
import anyio.abc
import pytest
from anyio.lowlevel import checkpoint

from assay.contracts.errors import (
    FileTooLargeError,
    PackageError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)
from assay.contracts.execution import (
    DEFAULT_SPEC,
    Command,
    ExecutionResult,
    Limits,
    OutputChunk,
    Program,
    PythonCode,
    SandboxSpec,
)
from assay.contracts.ports import Sandbox, ignore_output
from assay.sandbox.rpc.connection import VERSION, WINDOW_FRAMES, FrameReader, encode
from assay.sandbox.rpc.messages import executor_pb2, relay_pb2
from assay.sandbox.rpc.stream_client import open_relay
from assay.sandbox.rpc.stream_server import serve_relay
from tests.doubles.fake_sandbox import FakeBackend, FakeSandbox, answer_with
from tests.support.relays import connected_streams, open_relayed
from tests.support.slow_sandboxes import OneSandbox, SlowSandbox

LS = Command(argv=("ls",))
HELLO = relay_pb2.Frame(hello=relay_pb2.Hello(version=VERSION))


def loud(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
    del program, sandbox
    return answer_with("out" * 1000, stderr="err", exit_code=3)


async def test_a_program_is_run_on_the_far_side() -> None:
    backend = FakeBackend(answer=loud)
    heard: list[OutputChunk] = []

    async with open_relayed(backend) as relayed, relayed.open_sandbox(Limits()) as sandbox:
        unheard = await sandbox.run(LS)
        result = await sandbox.run(LS, on_output=heard.append)

    assert (relayed.name, relayed.isolation) == ("fake", backend.isolation)
    assert unheard == result == loud(LS, FakeSandbox())
    assert b"".join(c.data for c in heard if c.stream == "stdout") == result.stdout_bytes
    assert b"".join(c.data for c in heard if c.stream == "stderr") == result.stderr_bytes


async def test_large_files_and_long_lists_come_whole() -> None:
    content = bytes(range(256)) * (20 << 12)
    async with (
        open_relayed(FakeBackend()) as relayed,
        relayed.open_sandbox(Limits()) as sandbox,
    ):
        await sandbox.write_file(PurePosixPath("large"), content, executable=True)
        for number in range(510):
            await sandbox.make_directory(PurePosixPath(f"d/{number}"))

        assert await sandbox.read_file(PurePosixPath("large")) == content
        listed = await sandbox.list_files()
        assert len(listed) == 512
        assert [file.executable for file in listed if file.kind == "file"] == [True]
        await sandbox.remove_path(PurePosixPath("d"))
        assert len(await sandbox.list_files()) == 1


async def test_errors_of_the_workspace_arrive_with_their_details() -> None:
    async with (
        open_relayed(FakeBackend()) as relayed,
        relayed.open_sandbox(Limits(disk_mb=1)) as sandbox,
    ):
        with pytest.raises(WorkspaceFileNotFoundError):
            await sandbox.read_file(PurePosixPath("none"))
        await sandbox.write_file(PurePosixPath("ten"), bytes(10))
        with pytest.raises(FileTooLargeError) as caught:
            await sandbox.read_file(PurePosixPath("ten"), max_bytes=9)
        assert (caught.value.size_bytes, caught.value.max_bytes) == (10, 9)
        with pytest.raises(WorkspaceFullError):
            await sandbox.write_file(PurePosixPath("full"), bytes(1 << 20))
        with pytest.raises(UsageError):
            await sandbox.write_file(PurePosixPath("a\0b"), b"")


async def test_an_answer_does_not_wait_for_the_rest_of_the_request() -> None:
    far = FakeBackend()
    async with open_relayed(far) as relayed, relayed.open_sandbox(Limits()) as sandbox:
        await sandbox.write_file(PurePosixPath("in the way"), b"")

        # Many times what may be under way, and refused for its path.
        with anyio.fail_after(60), pytest.raises(Exception, match="in the way"):
            await sandbox.write_file(PurePosixPath("in the way/x"), bytes(40 << 20))


async def test_an_interpreter_and_its_branch_are_used_on_the_far_side() -> None:
    async with (
        open_relayed(FakeBackend(answer=loud)) as relayed,
        relayed.open_sandbox(Limits()) as sandbox,
        sandbox.open_interpreter() as interpreter,
    ):
        first = await interpreter.run_cell("1 + 1", timeout_s=3)
        async with interpreter.branch() as branch:
            second = await branch.run_cell("2 + 2")
        again = await interpreter.run_cell("3 + 3")
        await interpreter.interrupt()

    assert [cell.number for cell in (first, second, again)] == [1, 2, 2]
    assert first.execution.stdout == "out" * 1000
    with pytest.raises(SandboxUnavailableError) as caught:
        await branch.run_cell("4")
    assert caught.value.dispatch == "never_started"


async def test_cancelling_a_run_ends_it_on_the_far_side_first() -> None:
    slow = SlowSandbox()
    async with (
        open_relayed(OneSandbox(slow)) as relayed,
        relayed.open_sandbox(Limits()) as sandbox,
    ):
        for listen in (ignore_output, lambda _: None):
            slow.begun, slow.killed = anyio.Event(), anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda listen=listen: sandbox.run(LS, on_output=listen))
                await slow.begun.wait()
                tasks.cancel_scope.cancel()

            assert slow.killed.is_set()


async def test_calls_that_are_cancelled_while_they_begin_leave_the_others_alone() -> None:
    last = PurePosixPath("last")
    async with open_relayed(FakeBackend()) as relayed, relayed.open_sandbox(Limits()) as sandbox:
        for _ in range(20):
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    tasks.start_soon(sandbox.write_file, PurePosixPath(f"{number}"), b"")
                await checkpoint()
                tasks.cancel_scope.cancel()

        await sandbox.write_file(last, b"still here")
        assert await sandbox.read_file(last) == b"still here"


async def test_what_a_client_leaves_behind_is_ended_with_its_connection() -> None:
    slow = SlowSandbox()
    near, far = await connected_streams()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_relay, OneSandbox(slow), far)
            await tasks.start(_run_until_lost, near)
            await slow.begun.wait()
            await near.aclose()
            await slow.killed.wait()


async def _run_until_lost(
    near: anyio.abc.SocketStream, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    async with open_relay(near) as relayed, relayed.open_sandbox(Limits()) as sandbox:
        task_status.started()
        with pytest.raises(SandboxUnavailableError) as caught:
            await sandbox.run(LS)
        assert caught.value.dispatch == "outcome_unknown"
        with pytest.raises(SandboxUnavailableError) as caught:
            await sandbox.run(LS)
        assert caught.value.dispatch == "never_started"


@asynccontextmanager
async def _refuse(limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC) -> AsyncGenerator[Sandbox]:
    raise PackageError(f"there is no {equipment.packages[0]}", hint=f"{limits.wall_s:g}")
    yield FakeSandbox()


async def test_what_opening_raises_is_raised_here() -> None:
    class Refusing(FakeBackend):
        open_sandbox = staticmethod(_refuse)  # type: ignore[assignment]

    async with open_relayed(Refusing()) as relayed:
        with pytest.raises(PackageError, match="there is no nothing"):
            async with relayed.open_sandbox(Limits(), SandboxSpec(packages=("nothing",))):
                pass


async def test_two_hundred_calls_at_once_are_each_right() -> None:
    def echo(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del sandbox
        assert isinstance(program, PythonCode)
        return answer_with(program.source.decode() * 1000)

    right: list[bool] = []

    async def run(sandbox: Sandbox, number: int) -> None:
        result = await sandbox.run(PythonCode(source=b"%d," % number))
        right.append(result.stdout == f"{number}," * 1000)

    async with (
        open_relayed(FakeBackend(answer=echo)) as relayed,
        relayed.open_sandbox(Limits()) as sandbox,
        anyio.create_task_group() as tasks,
    ):
        for number in range(200):
            tasks.start_soon(run, sandbox, number)

    assert right == [True] * 200


# --- a far side that does not keep the rules ---

Misdeed = Callable[[anyio.abc.ByteStream, int], Awaitable[None]]


async def _serve_badly(stream: anyio.abc.ByteStream, misdeed: Misdeed) -> None:
    """Greet and open sandboxes as one should; answer the first execution with a misdeed."""
    reader = FrameReader()
    methods: dict[int, str] = {}
    await stream.send(encode(HELLO))
    async for data in stream:
        for frame in reader.feed(data):
            if frame.WhichOneof("body") == "begin":
                methods[frame.call] = frame.begin.method
            if frame.WhichOneof("body") == "end":
                method = methods[frame.call]
                if method == "ExecuteStream":
                    await misdeed(stream, frame.call)
                    continue
                answer = (
                    executor_pb2.Capabilities(backend="bad", isolation=1)  # type: ignore[arg-type]
                    if method == "GetCapabilities"
                    else executor_pb2.OpenSandboxResponse(isolation=1)  # type: ignore[arg-type]
                )
                await _content(stream, frame.call, answer.SerializeToString())
                await stream.send(encode(relay_pb2.Frame(call=frame.call, end=relay_pb2.End())))


async def _content(stream: anyio.abc.ByteStream, call: int, data: bytes) -> None:
    content = relay_pb2.Content(data=data)
    await stream.send(encode(relay_pb2.Frame(call=call, content=content)))


async def _noise(stream: anyio.abc.ByteStream, call: int) -> None:
    del call
    await stream.send(b"\xff" * 100)


async def _another_call(stream: anyio.abc.ByteStream, call: int) -> None:
    await _content(stream, call + 1, b"")


async def _too_much(stream: anyio.abc.ByteStream, call: int) -> None:
    begun = relay_pb2.Content(data=b"x", more=True)
    frame = encode(relay_pb2.Frame(call=call, content=begun))
    await stream.send(frame * (20 * WINDOW_FRAMES))


async def _not_an_event(stream: anyio.abc.ByteStream, call: int) -> None:
    await _content(stream, call, b"\xff\xff\xff")


async def _a_gap(stream: anyio.abc.ByteStream, call: int) -> None:
    output = executor_pb2.Output(stream=executor_pb2.STREAM_STDOUT, offset=5, data=b"x")
    event = executor_pb2.ExecutionEvent(sequence=1, output=output)
    await _content(stream, call, event.SerializeToString())


async def _out_of_order(stream: anyio.abc.ByteStream, call: int) -> None:
    output = executor_pb2.Output(stream=executor_pb2.STREAM_STDOUT, data=b"x")
    event = executor_pb2.ExecutionEvent(sequence=2, output=output)
    await _content(stream, call, event.SerializeToString())


async def _no_result(stream: anyio.abc.ByteStream, call: int) -> None:
    await stream.send(encode(relay_pb2.Frame(call=call, end=relay_pb2.End())))


async def _a_result_of_a_cell(stream: anyio.abc.ByteStream, call: int) -> None:
    execution = executor_pb2.ExecutionResult(
        exit_code=0,
        reason=executor_pb2.REASON_COMPLETED,
        isolation=executor_pb2.ISOLATION_NONE,
    )
    cell = executor_pb2.CellResult(execution=execution, state=executor_pb2.CELL_STATE_KEPT)
    event = executor_pb2.ExecutionEvent(sequence=1, cell=cell)
    await _content(stream, call, event.SerializeToString())


async def _hang_up(stream: anyio.abc.ByteStream, call: int) -> None:
    del call
    await stream.aclose()


async def _greet_again(stream: anyio.abc.ByteStream, call: int) -> None:
    del call
    await stream.send(encode(HELLO))


@pytest.mark.parametrize(
    "misdeed",
    [
        _noise,
        _another_call,
        _too_much,
        _not_an_event,
        _a_gap,
        _out_of_order,
        _no_result,
        _a_result_of_a_cell,
        _hang_up,
        _greet_again,
    ],
)
async def test_a_far_side_that_breaks_a_rule_is_left(misdeed: Misdeed) -> None:
    near, far = await connected_streams()

    async def serve() -> None:
        async with far:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await _serve_badly(far, misdeed)

    with anyio.fail_after(60):
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            tasks.start_soon(serve)
            relayed = await stack.enter_async_context(open_relay(near))
            sandbox = await stack.enter_async_context(relayed.open_sandbox(Limits()))
            with pytest.raises(SandboxUnavailableError) as caught:
                await sandbox.run(LS, on_output=lambda _: None)
            assert caught.value.dispatch == "outcome_unknown"
            with pytest.raises(SandboxUnavailableError) as caught:
                await sandbox.run(LS)
            assert caught.value.dispatch == "never_started"


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", encode(relay_pb2.Frame(hello={"version": 9}))]
)
async def test_something_that_is_no_relay_is_not_taken_for_one(greeting: bytes) -> None:
    near, far = await connected_streams()
    await far.send(greeting)

    with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
        async with open_relay(near):
            pass

    assert caught.value.dispatch == "never_started"
    await far.aclose()


async def test_nobody_at_the_other_end_is_noticed() -> None:
    near, far = await connected_streams()

    with anyio.fail_after(60), pytest.raises(SandboxUnavailableError, match="no answer within"):
        async with open_relay(near, greeting_s=0.05):
            pass

    await far.aclose()


# --- a near side that does not keep them ---


@pytest.mark.parametrize(
    "frames",
    [
        [relay_pb2.Frame(call=1, begin=relay_pb2.Begin(method="GetCapabilities"))],
        [HELLO, relay_pb2.Frame(call=1, begin=relay_pb2.Begin(method="__init__"))],
        [HELLO, relay_pb2.Frame(call=1, content=relay_pb2.Content())],
        [HELLO, *[relay_pb2.Frame(call=1, begin=relay_pb2.Begin(method="ReadFile"))] * 2],
        [
            HELLO,
            relay_pb2.Frame(call=1, begin=relay_pb2.Begin(method="WriteFile")),
            *[relay_pb2.Frame(call=1, content=relay_pb2.Content(more=True))] * 10000,
        ],
    ],
)
async def test_a_client_that_breaks_a_rule_is_left(frames: list[relay_pb2.Frame]) -> None:
    near, far = await connected_streams()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_relay, FakeBackend(), far)
            reader = FrameReader()
            answered: list[relay_pb2.Frame] = []
            try:
                await near.send(b"".join(map(encode, frames)))
                async for data in near:
                    answered.extend(reader.feed(data))
            except anyio.BrokenResourceError:
                pass
            await near.aclose()

    assert [frame for frame in answered if frame.WhichOneof("body") == "end"] == []
