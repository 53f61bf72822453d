"""What an executor says of itself, where sandboxes go when there are several, and its settings."""

from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import anyio
import anyio.abc
import grpc.aio
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from assay.contracts.errors import UsageError
from assay.contracts.execution import DEFAULT_SPEC, Command, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox, trouble_of
from assay.executor.serve import Executor
from assay.sandbox.factory import EquippedBackend
from assay.sandbox.rpc.messages.failures import ExecutorBusyError
from assay.settings.load import load_settings
from tests.doubles.fake_sandbox import FakeBackend
from tests.support.executors import make_certificates, open_client, open_served
from tests.support.slow_sandboxes import OneSandbox, SlowSandbox

LS = Command(argv=("ls",))


@dataclass(frozen=True, kw_only=True)
class Counting:
    """A backend that counts what it opens."""

    inner: FakeBackend = field(default_factory=FakeBackend)
    name: str = "fake"
    isolation: Isolation = Isolation.NONE
    opened: list[Limits] = field(default_factory=list)

    def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AbstractAsyncContextManager[Sandbox]:
        self.opened.append(limits)
        return self.inner.open_sandbox(limits, equipment)


async def _services(executor: Executor) -> set[str]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([asked]))]
    return {service.name for service in answers[0].list_services_response.service}


async def test_reflection_says_what_there_is_unless_it_is_switched_off(tmp_path: Path) -> None:
    async with open_served(FakeBackend(), tmp_path) as executor:
        services = await _services(executor)
    async with (
        open_served(FakeBackend(), tmp_path, reflection=False) as executor,
        grpc.aio.insecure_channel(f"127.0.0.1:{executor.port}") as channel,
    ):
        # Sends nothing: the executor may refuse the call before a message is sent.
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        refused = await call.code()

    assert services >= {"assay.executor.v1.Executor", "grpc.health.v1.Health"}
    assert refused is grpc.StatusCode.UNIMPLEMENTED


async def test_numbers_are_served_for_prometheus(tmp_path: Path, free_tcp_port: int) -> None:
    async with (
        open_served(FakeBackend(), tmp_path, metrics_port=free_tcp_port) as executor,
        open_client(executor.port) as remote,
        httpx2.AsyncClient() as http,
    ):
        async with remote.open_sandbox(Limits()) as sandbox:
            await sandbox.run(LS)
            address = f"http://127.0.0.1:{executor.metrics_port}/metrics"
            during = (await http.get(address)).text
        after = (await http.get(address)).text

    assert 'assay_executions_total{outcome="completed"} 1.0' in during
    assert "assay_sandboxes_open 1.0" in during
    assert "assay_sandboxes_open 0.0" in after


async def test_a_queue_that_is_full_turns_away_with_the_time_to_come_back(tmp_path: Path) -> None:
    slow = SlowSandbox()
    async with (
        open_served(OneSandbox(slow), tmp_path, max_queued=1, client_executions=1) as executor,
        open_client(executor.port, retry_timeout_s=0.0) as remote,
        remote.open_sandbox(Limits()) as sandbox,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(sandbox.run, LS)
        await slow.begun.wait()
        refusals: list[ExecutorBusyError] = []
        done = anyio.Event()

        async def run_one_more() -> None:
            try:
                await sandbox.run(LS)
            except ExecutorBusyError as busy:
                refusals.append(busy)
                done.set()

        # One of these waits, and the other finds the queue full.
        tasks.start_soon(run_one_more)
        tasks.start_soon(run_one_more)
        with anyio.fail_after(60):
            await done.wait()
        slow.go_on.set()

    assert len(refusals) == 1
    assert refusals[0].retry_after_s > 0
    assert refusals[0].dispatch == "never_started"
    assert len(slow.programs) == 2


async def test_sandboxes_are_spread_over_executors_and_stay_where_they_are(tmp_path: Path) -> None:
    backends = [Counting() for _ in range(3)]
    async with (
        open_served(backends[0], tmp_path / "0") as first,
        open_served(backends[1], tmp_path / "1") as second,
        open_served(backends[2], tmp_path / "2") as third,
        open_client(first.port, second.port, third.port) as remote,
        remote.open_sandbox(Limits()) as one,
        remote.open_sandbox(Limits()) as two,
        remote.open_sandbox(Limits()) as three,
    ):
        for number, sandbox in enumerate((one, two, three)):
            await sandbox.write_file(PurePosixPath("whose"), str(number).encode())
        for _ in range(3):
            for number, sandbox in enumerate((one, two, three)):
                assert await sandbox.read_file(PurePosixPath("whose")) == str(number).encode()

        assert [len(backend.opened) for backend in backends] == [1, 1, 1]


async def test_an_executor_that_ends_is_asked_no_more(tmp_path: Path) -> None:
    staying, leaving = Counting(), Counting()
    async with (
        open_served(staying, tmp_path / "0") as stays,
        open_served(leaving, tmp_path / "1") as leaves,
        open_client(stays.port, leaves.port) as remote,
    ):
        await leaves.drain(1)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{leaves.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            told = await stub.Check(health_pb2.HealthCheckRequest())
        for _ in range(4):
            async with remote.open_sandbox(Limits()) as sandbox:
                await sandbox.run(LS)

    assert told.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert len(staying.opened) == 4
    assert leaving.opened == []


async def test_a_backend_without_its_executor_is_known_to_be_in_trouble(tmp_path: Path) -> None:
    async with (
        open_served(FakeBackend(), tmp_path) as executor,
        open_client(executor.port) as remote,
    ):
        equipped = EquippedBackend(remote, SandboxSpec(packages=("six",)))
        before = trouble_of(equipped)
        await executor.stop()
        with anyio.fail_after(60):
            while not trouble_of(equipped):  # noqa: ASYNC110 - it is looked for in the background
                await anyio.sleep(0.05)

        assert before == ""
        assert f"127.0.0.1:{executor.port}" in trouble_of(equipped)
    assert trouble_of(FakeBackend()) == ""


async def test_an_executor_that_is_far_away_is_reached(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certs")
    async with (
        open_served(FakeBackend(), tmp_path, **certificates.server()) as executor,
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django
        tasks.start_soon(listener.serve, partial(_delay, to_port=executor.port))
        async with (
            open_client(port, **certificates.client("alice")) as remote,
            remote.open_sandbox(Limits()) as sandbox,
        ):
            assert (await sandbox.run(LS)).succeeded
        tasks.cancel_scope.cancel()


async def _delay(near: anyio.abc.SocketStream, *, to_port: int) -> None:
    """Carry a connection on, as slowly as to the other side of the world."""
    async with (
        near,
        await anyio.connect_tcp("127.0.0.1", to_port) as far,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_carry, near, far)
        tasks.start_soon(_carry, far, near)


async def _carry(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            piece = await source.receive()
            await anyio.sleep(0.1)  # the distance
            await sink.send(piece)


async def test_names_that_other_servers_know_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = make_certificates(tmp_path / "certs")
    monkeypatch.setenv("GRPC_USE_SECURE", "true")
    with pytest.raises(UsageError, match="no certificate"):
        async with open_served(FakeBackend(), tmp_path, **_executor_settings()):
            pass
    monkeypatch.setenv("GRPC_CERT_FILE", str(certificates.folder / "server.crt"))
    monkeypatch.setenv("GRPC_KEY_FILE", str(certificates.folder / "server.key"))

    async with (
        open_served(FakeBackend(), tmp_path, **_executor_settings()) as executor,
        open_client(executor.port, ca=certificates.ca) as remote,
        remote.open_sandbox(Limits()) as sandbox,
    ):
        assert executor.description == "TLS"
        assert (await sandbox.run(LS)).succeeded


def _executor_settings() -> dict[str, object]:
    settings = load_settings().executor
    return {"secure": settings.secure, "cert": settings.cert, "key": settings.key}
