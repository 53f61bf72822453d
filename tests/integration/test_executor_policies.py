"""What an executor refuses by its settings and its state, as any gRPC client sees it."""

import json
import resource
import signal
from pathlib import Path, PurePosixPath

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from assay.auth.certificates import make_server_certificate
from assay.auth.credentials import expiry_warning
from assay.contracts.errors import PolicyError, UsageError
from assay.contracts.execution import Limits, PythonCode
from assay.executor.observer import AuditLog
from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages.failures import SERVICE, ExecutorBusyError
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.executor_stub import ExecutorStub
from tests.support.executors import make_certificates, open_client, open_served


def request(execution_id: str, source: bytes, **files: bytes) -> executor_pb2.ExecuteRequest:
    return executor_pb2.ExecuteRequest(
        execution_id=execution_id,
        program=executor_pb2.Program(python={"source": source}),
        fresh=executor_pb2.FreshSandbox(
            limits=executor_pb2.Limits(wall_s=5),
            files=[{"path": name.encode(), "content": text} for name, text in files.items()],
        ),
    )


async def refusal(stub: ExecutorStub, asked: executor_pb2.ExecuteRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Execute(asked)
    return caught.value


async def test_modules_that_are_not_allowed_are_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    async with (
        open_served(FakeBackend(), tmp_path, deny_modules="socket, ctypes") as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
        open_client(executor.port) as remote,
        remote.open_sandbox(Limits()) as sandbox,
    ):
        stub = ExecutorStub(channel)
        await stub.Execute(request("one-that-is-allowed", b"import json"))
        program = await refusal(stub, request("the-one-that-is-not", b"\nimport socket"))
        file = await refusal(
            stub, request("the-one-with-a-file", b"", **{"a.py": b"import ctypes"})
        )
        with pytest.raises(PolicyError, match="imports socket"):
            await sandbox.run(PythonCode(source=b"import socket"))
        with pytest.raises(PolicyError, match=r"'m\.py', line 1: imports ctypes"):
            await sandbox.write_file(PurePosixPath("m.py"), b"import ctypes")

    assert program.code() is file.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "line 2: imports socket: is denied here" in str(program.details())
    assert "executor.deny_modules" in str(program.details())
    log = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in log] == ["begun", "ended", "refused", "refused", "refused"]


async def test_an_execution_id_stands_for_one_program(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(), tmp_path) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = ExecutorStub(channel)
        first = await stub.Execute(request("the-same-id-again", b"print(1)"))
        again = await stub.Execute(request("the-same-id-again", b"print(1)"))
        other = await refusal(stub, request("the-same-id-again", b"print(2)"))

    assert first == again
    assert other.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "taken by another program" in str(other.details())


async def test_the_health_service_knows_the_names_of_the_services(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(), tmp_path) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        serving = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        await executor.drain(5)
        draining = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))

    assert serving.status == health_pb2.HealthCheckResponse.SERVING
    assert draining.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_without_room_for_the_audit_log_nothing_is_begun(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(), tmp_path) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        stub = ExecutorStub(channel)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            refused = await refusal(stub, request("the-one-too-many", b"print(1)"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, heard)
        await stub.Execute(request("the-one-that-fits", b"print(1)"))

    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "cannot write its audit log" in str(refused.details())


def test_a_line_of_the_audit_log_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.write({"event": "first"})
    kept = (tmp_path / "audit.jsonl").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) + 10, before[1]))  # room for a part
    try:
        with pytest.raises(ExecutorBusyError, match="cannot write its audit log"):
            log.write({"event": "second"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)
        log.close()

    assert (tmp_path / "audit.jsonl").read_bytes() == kept


async def test_a_key_that_does_not_fit_its_certificate_is_told_so(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    other = make_certificates(tmp_path / "other")
    server = {**certificates.server(), "key": other.folder / "server.key"}
    client = {**certificates.client("alice"), "key": other.client("alice")["key"]}

    with pytest.raises(UsageError, match="does not fit the certificate") as caught:
        async with open_served(FakeBackend(), tmp_path, **server):
            pass
    assert "executor.key" in caught.value.hint
    with pytest.raises(UsageError, match="does not fit the certificate") as caught:
        async with open_client(1, **client):
            pass
    assert "sandbox.remote.key" in caught.value.hint


def test_a_certificate_that_has_expired_is_warned_of(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    fine = certificates.folder / "server.crt"
    before = expiry_warning(fine)
    (certificates.folder / "server.key").unlink()
    fine.unlink()
    make_server_certificate(tmp_path, ("localhost",), days=0)

    assert before == expiry_warning(None) == ""
    assert "expired on" in expiry_warning(fine)
