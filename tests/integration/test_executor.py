"""Who gets into an executor, who does not and why, and how much each of them gets."""

import json
import socket
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from assay.auth.tokens import executor_tokens
from assay.contracts.errors import SandboxUnavailableError, UsageError, WorkspaceFileNotFoundError
from assay.contracts.execution import Command, ExecutionResult, Limits, Program, PythonCode
from assay.contracts.ports import OnOutput, SandboxBackend, ignore_output
from assay.executor.serve import Executor
from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages.failures import (
    FAILURE_KEY,
    PUSHBACK_KEY,
    ExecutorBusyError,
    RequestRefusedError,
)
from tests.doubles.fake_sandbox import FakeBackend, FakeSandbox, answer_with
from tests.support.executor_stub import ExecutorStub
from tests.support.executors import Certificates, make_certificates, open_client, open_served
from tests.support.slow_sandboxes import OneSandbox, SlowSandbox

LS = Command(argv=("ls",))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certs"))


def say_hello(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
    del program, sandbox
    return answer_with("hello")


def audit(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def run_once(backend: SandboxBackend) -> ExecutionResult:
    async with backend.open_sandbox(Limits()) as sandbox:
        return await sandbox.run(LS)


# --- who gets in ---


async def test_a_client_with_a_certificate_gets_in(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with (
        open_served(FakeBackend(answer=say_hello), tmp_path, **certificates.server()) as executor,
        open_client(executor.port, **certificates.client("alice")) as remote,
    ):
        result = await run_once(remote)

    assert result.stdout == "hello"
    assert {entry["client"] for entry in audit(tmp_path)} == {"cert:alice"}


async def _refused(executor: Executor, **settings: object) -> SandboxUnavailableError:
    with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
        async with open_client(executor.port, **settings):
            pass
    assert caught.value.dispatch == "never_started"
    return caught.value


async def test_a_client_without_a_certificate_is_told_so(
    certificates: Certificates, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_served(FakeBackend(), tmp_path, **certificates.server()) as executor:
        error = await _refused(executor, ca=certificates.ca)

    assert "certificate" in str(error)
    assert "sandbox.remote.cert" in error.hint
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in capfd.readouterr().err


async def test_a_client_with_a_foreign_certificate_is_told_so(
    certificates: Certificates, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    foreign = make_certificates(tmp_path / "foreign").client("mallory")
    async with open_served(FakeBackend(), tmp_path, **certificates.server()) as executor:
        error = await _refused(executor, **{**foreign, "ca": certificates.ca})

    assert "certificate" in str(error)
    assert "CERTIFICATE_VERIFY_FAILED" in capfd.readouterr().err


async def test_a_client_with_an_expired_certificate_is_told_so(
    certificates: Certificates, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    expired = certificates.client("late", days=0)
    async with open_served(FakeBackend(), tmp_path, **certificates.server()) as executor:
        error = await _refused(executor, **expired)

    assert "expired" in f"{error} {error.hint}"
    assert "expired" in capfd.readouterr().err


async def test_an_executor_that_a_stranger_vouches_for_is_not_believed(
    certificates: Certificates, tmp_path: Path
) -> None:
    foreign = make_certificates(tmp_path / "foreign")
    async with open_served(FakeBackend(), tmp_path, **certificates.server()) as executor:
        error = await _refused(executor, **{**certificates.client("alice"), "ca": foreign.ca})

    assert "its certificate cannot be trusted" in str(error)


async def test_plain_text_on_a_tls_port_is_told_so(
    certificates: Certificates, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_served(FakeBackend(), tmp_path, **certificates.server()) as executor:
        error = await _refused(executor)

    assert "it speaks TLS" in str(error)
    assert "WRONG_VERSION_NUMBER" in capfd.readouterr().err


async def test_tls_on_a_plain_text_port_is_told_so(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with open_served(FakeBackend(), tmp_path) as executor:
        error = await _refused(executor, **certificates.client("alice"))

    assert "plain text" in str(error)


async def test_nobody_there_is_told_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    with pytest.raises(SandboxUnavailableError, match="connection refused"):
        async with open_client(port):
            pass


def token_file(folder: Path, token: str) -> Path:
    path = folder / "token"
    path.write_text(token + "\n")
    path.chmod(0o600)
    return path


async def test_a_client_with_a_token_gets_in_and_others_do_not(tmp_path: Path) -> None:
    digests = tmp_path / "tokens"
    token = executor_tokens(digests).add("bob")
    executor_tokens(digests).add("carol")
    async with open_served(FakeBackend(answer=say_hello), tmp_path, token_file=digests) as executor:
        async with open_client(executor.port, token_file=token_file(tmp_path, token)) as remote:
            assert (await run_once(remote)).stdout == "hello"
        wrong = await _refused(executor, token_file=token_file(tmp_path, token[:-1] + "!"))
        none = await _refused(executor)

    assert isinstance(wrong, RequestRefusedError)
    assert "does not know this token" in str(wrong)
    assert "asks for a token" in str(none)
    refused = [entry for entry in audit(tmp_path) if entry["event"] == "refused"]
    assert len(refused) == 2
    assert all("127.0.0.1" in entry["peer"] for entry in refused)
    assert token not in (tmp_path / "audit.jsonl").read_text() + digests.read_text()
    assert _mode(digests) == 0o600


async def test_a_client_cannot_touch_what_is_another_ones(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with (
        open_served(FakeBackend(), tmp_path, **certificates.server()) as executor,
        open_client(executor.port, **certificates.client("alice")) as alice,
        open_client(executor.port, **certificates.client("bob")) as bob,
        alice.open_sandbox(Limits()) as hers,
        bob.open_sandbox(Limits()) as his,
    ):
        await hers.write_file(PurePosixPath("secret"), b"hers")
        with pytest.raises(WorkspaceFileNotFoundError):
            await his.read_file(PurePosixPath("secret"))

        his.id, own = hers.id, his.id  # type: ignore[attr-defined]
        with pytest.raises(SandboxUnavailableError, match="no such sandbox"):
            await his.read_file(PurePosixPath("secret"))
        with pytest.raises(SandboxUnavailableError, match="no such sandbox"):
            await his.run(LS)
        his.id = own  # type: ignore[attr-defined]
        assert await hers.read_file(PurePosixPath("secret")) == b"hers"


# --- where an executor listens ---


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104 - what must be refused
async def test_an_executor_for_everybody_is_refused(
    host: str, certificates: Certificates, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no TLS"):
        async with open_served(FakeBackend(), tmp_path, host=host):
            pass
    server = certificates.server()
    del server["client_ca"]
    with pytest.raises(UsageError, match="everybody would get in"):
        async with open_served(FakeBackend(), tmp_path, host=host, **server):
            pass


async def test_tls_that_is_asked_for_is_not_left_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no certificate"):
        async with open_served(FakeBackend(), tmp_path, secure=True):
            pass


async def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    (certificates.folder / "server.key").chmod(0o644)

    with pytest.raises(UsageError, match="others can read or change it"):
        async with open_served(FakeBackend(), tmp_path, **certificates.server()):
            pass


async def test_a_port_that_is_taken_is_told_so(tmp_path: Path) -> None:
    async with open_served(FakeBackend(), tmp_path) as executor:
        with pytest.raises(UsageError, match="cannot listen"):
            async with open_served(FakeBackend(), tmp_path, port=executor.port):
                pass


# --- how much a client gets ---


async def test_more_sandboxes_than_a_client_may_have_are_turned_away(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(), tmp_path, client_sandboxes=2) as executor,
        open_client(executor.port, retry_timeout_s=0.0) as remote,
        remote.open_sandbox(Limits()),
        remote.open_sandbox(Limits()) as second,
    ):
        with pytest.raises(ExecutorBusyError, match="as many as it may") as caught:
            async with remote.open_sandbox(Limits()):
                pass
        assert caught.value.dispatch == "never_started"
        assert caught.value.retry_after_s > 0

        assert (await second.run(LS)).succeeded


async def test_more_executions_than_a_minute_allows_are_turned_away(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(), tmp_path, client_per_minute=3) as executor,
        open_client(executor.port, retry_timeout_s=0.0) as remote,
        remote.open_sandbox(Limits()) as sandbox,
    ):
        for _ in range(3):
            await sandbox.run(LS)
        with pytest.raises(ExecutorBusyError, match="within a minute"):
            await sandbox.run(LS)
        with pytest.raises(ExecutorBusyError, match="within a minute"):
            await sandbox.run(LS, on_output=lambda _: None)

    events = [entry["event"] for entry in audit(tmp_path)]
    assert events == ["begun", "ended"] * 3 + ["refused"] * 2


async def test_grpc_itself_is_told_when_to_ask_again(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(), tmp_path, client_per_minute=1) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = ExecutorStub(channel)

        async def execute(number: int) -> executor_pb2.ExecutionResult:
            request = executor_pb2.ExecuteRequest(
                execution_id=f"execution-number-{number}",
                program=executor_pb2.Program(python={"source": b""}),
                fresh=executor_pb2.FreshSandbox(),
            )
            return await stub.Execute(request)

        first = await execute(1)
        again = await execute(1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await execute(2)

    assert first.exit_code == again.exit_code == 0
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(caught.value.trailing_metadata() or ())
    assert int(trailing[PUSHBACK_KEY]) > 0
    failure = executor_pb2.Failure.FromString(trailing[FAILURE_KEY])
    assert failure.code == executor_pb2.FAILURE_CODE_BUSY


async def test_the_code_is_not_in_the_audit_log(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(answer=say_hello), tmp_path) as executor,
        open_client(executor.port) as remote,
        remote.open_sandbox(Limits()) as sandbox,
    ):
        secret = PythonCode(source=b"hunter2", env={"KEY": "hunter3"}, stdin=b"hunter4")
        await sandbox.run(secret)
        async with sandbox.open_interpreter() as interpreter:
            await interpreter.run_cell("hunter5")

    log = audit(tmp_path)
    assert [entry["event"] for entry in log] == ["begun", "ended"] * 2
    assert (log[0]["kind"], log[2]["kind"], log[1]["outcome"]) == ("python", "cell", "completed")
    assert len(log[0]["sha256"]) == 64
    assert log[0]["limits"]["memory_mb"] == 512
    assert "hunter" not in json.dumps(log)
    assert _mode(tmp_path / "audit.jsonl") == 0o600


# --- how it ends ---


async def test_an_executor_that_drains_finishes_what_runs_and_takes_nothing(
    tmp_path: Path,
) -> None:
    slow = SlowSandbox()
    results: list[ExecutionResult] = []
    drained: list[bool] = []

    async with (
        open_served(OneSandbox(slow), tmp_path) as executor,
        open_client(executor.port, retry_timeout_s=0.0) as remote,
        remote.open_sandbox(Limits()) as sandbox,
        anyio.create_task_group() as tasks,
    ):

        async def run() -> None:
            results.append(await sandbox.run(LS))

        async def drain() -> None:
            drained.append(await executor.drain(20))

        tasks.start_soon(run)
        await slow.begun.wait()
        assert await _is_serving(executor)
        tasks.start_soon(drain)
        while await _is_serving(executor):  # noqa: ASYNC110 - what is waited for is in another process's view
            await anyio.sleep(0.01)
        with pytest.raises(ExecutorBusyError, match="shutting down"):
            await sandbox.run(LS)
        with pytest.raises(ExecutorBusyError, match="shutting down"):
            async with remote.open_sandbox(Limits()):
                pass
        slow.go_on.set()

    assert results[0].stdout == "begun, gone on"
    assert drained == [True]


async def _is_serving(executor: Executor) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_an_executor_that_drains_does_not_wait_for_ever(tmp_path: Path) -> None:
    slow = SlowSandbox()
    async with (
        open_served(OneSandbox(slow), tmp_path) as executor,
        open_client(executor.port) as remote,
        remote.open_sandbox(Limits()) as sandbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sandbox.run, LS)
        await slow.begun.wait()

        assert not await executor.drain(0.05)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("on_output", [ignore_output, lambda _: None], ids=["whole", "streamed"])
async def test_whoever_gives_up_goes_on_and_the_program_does_not(
    on_output: OnOutput, tmp_path: Path
) -> None:
    slow = SlowSandbox()
    async with (
        open_served(OneSandbox(slow), tmp_path) as executor,
        open_client(executor.port) as remote,
        remote.open_sandbox(Limits()) as sandbox,
        anyio.create_task_group() as tasks,
    ):
        patience = anyio.CancelScope()

        async def lose_patience() -> None:
            await slow.begun.wait()
            patience.cancel()

        tasks.start_soon(lose_patience)
        with patience:
            await sandbox.run(LS, on_output=on_output)

        assert patience.cancelled_caught
        assert slow.killed.is_set()


async def test_a_stream_that_broke_is_picked_up_where_it_broke(tmp_path: Path) -> None:
    slow = SlowSandbox()
    execution_id = "an-execution-of-the-test"
    async with (
        open_served(OneSandbox(slow), tmp_path) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = ExecutorStub(channel)
        request = executor_pb2.ExecuteRequest(
            execution_id=execution_id,
            program=executor_pb2.Program(python={"source": b""}),
            fresh=executor_pb2.FreshSandbox(),
        )
        stream = stub.ExecuteStream(request)
        first = await stream.read()
        stream.cancel()
        slow.go_on.set()

        attach = executor_pb2.AttachStreamRequest(execution_id=execution_id, stdout_offset=3)
        events = [event async for event in stub.AttachStream(attach)]

    assert (first.sequence, first.output.offset, first.output.data) == (1, 0, b"begun")
    outputs = [event.output for event in events[:-1]]
    assert outputs[0].offset == 3
    assert b"".join(output.data for output in outputs) == b"un, gone on"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].result.stdout_streamed_bytes == len("begun, gone on")
    assert len(slow.programs) == 1


async def test_a_sandbox_nobody_asks_for_any_more_is_closed(tmp_path: Path) -> None:
    slow = SlowSandbox()
    backend = OneSandbox(slow)
    async with (
        open_served(backend, tmp_path, lease_s=0.05) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = ExecutorStub(channel)
        await stub.OpenSandbox(executor_pb2.OpenSandboxRequest(sandbox_id="a" * 16))
        with anyio.fail_after(60):
            await backend.closed.wait()
        gone = await stub.RenewSandboxes(executor_pb2.RenewSandboxesRequest(sandbox_ids=["a" * 16]))

    assert list(gone.gone) == ["a" * 16]
