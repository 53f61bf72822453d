"""The configured executors: which of them answer, and the load of each."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, cast

import anyio
import grpc.aio
from grpc_health.v1 import health_pb2

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.contracts.execution import Isolation
from assay.sandbox.remote.grpc_transport import GrpcTransport
from assay.sandbox.rpc.client_sandbox import RemoteSandbox, UnreachableError, distrusting
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages import methods
from assay.sandbox.rpc.messages.codec import ISOLATIONS, measure

_CHECK_EVERY_S: Final = 2.0
_CHECK_S: Final = 5.0
_RENEWALS_PER_LEASE: Final = 4
_ANSWER_S: Final = 20.0
_GRACE_S: Final = 1.0
"""How long to wait for the other executors after the first suitable one has answered."""
_SILENT_S: Final = 0.5
"""How long a call may take before the client checks that the executor still answers."""
_PROBE_S: Final = 1.0
_FAREWELL_S: Final = 0.3
"""How long to wait for an unavailable executor to close a sandbox; its lease ends anyway."""

_HealthStatus = cast("Any", health_pb2)


class Endpoint:
    """One executor and this process's open sandboxes on it."""

    def __init__(self, transport: GrpcTransport) -> None:
        self.transport = transport
        self.sandboxes: dict[str, RemoteSandbox] = {}
        self.isolation: Isolation | None = None
        """None until the executor has answered."""
        self.digest = ""
        self.layers = False
        """Whether it opens sandboxes from layers."""
        self.serving = False
        self._lease_s = 0.0
        self._check = cast("Any", transport.channel).unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=_HealthStatus.HealthCheckRequest.SerializeToString,
            response_deserializer=_HealthStatus.HealthCheckResponse.FromString,
        )

    async def meet(self) -> None:
        """Ask for the executor's isolation and mark it as available.

        Raises:
            SandboxUnavailableError: If it cannot be reached or rejects this client.
        """
        request = pb.GetCapabilitiesRequest()
        answer = await self.transport.ask(methods.GET_CAPABILITIES, request, timeout_s=_ANSWER_S)
        with distrusting(self.transport):
            self.isolation = ISOLATIONS.decode(answer.isolation)
            self._lease_s = measure(answer.lease_s, of="a lease")
        self.digest = answer.digest
        self.layers = answer.layers
        self.serving = True

    async def unless_silent(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run an action there, and cancel it as soon as the executor stops answering.

        Raises:
            UnreachableError: If it stopped answering; the action may still take effect there.
            AssayError: The errors of `act`.
        """
        done = False

        async def watch() -> None:
            while True:
                await anyio.sleep(_SILENT_S)
                if not await self._answers():
                    tasks.cancel_scope.cancel()
                    return

        async with open_task_group() as tasks:
            tasks.start_soon(watch)
            await act()
            done = True
        if not done:
            self.serving = False
            raise UnreachableError(
                f"the executor {self.transport.address} does not answer",
                hint="is its process stopped, or its machine overloaded?",
            )

    async def _answers(self) -> bool:
        try:
            await self._check(_HealthStatus.HealthCheckRequest(), timeout=_PROBE_S)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def close(self, sandbox: RemoteSandbox) -> None:
        """Close a sandbox there, without waiting for an unavailable executor."""
        with anyio.move_on_after(None if self.serving else _FAREWELL_S):
            await sandbox.close()

    async def look_after(self) -> None:
        """Check the executor and renew leases, without end."""
        since_renewal_s = 0.0
        while True:
            await anyio.sleep(_CHECK_EVERY_S)
            since_renewal_s += _CHECK_EVERY_S
            try:
                await self._look()
                if self.sandboxes and since_renewal_s * _RENEWALS_PER_LEASE >= self._lease_s:
                    since_renewal_s = 0.0
                    await self._renew()
            except AssayError:
                self.serving = False

    async def _look(self) -> None:
        await self.transport.connect()
        try:
            answer = await self._check(_HealthStatus.HealthCheckRequest(), timeout=_CHECK_S)
        except grpc.aio.AioRpcError as error:
            raise UnreachableError(str(error.details())) from error
        serves = answer.status == _HealthStatus.HealthCheckResponse.SERVING
        if serves and not self.serving:
            await self.meet()
        self.serving = serves

    async def _renew(self) -> None:
        request = pb.RenewSandboxesRequest(sandbox_ids=list(self.sandboxes))
        await self.transport.ask(methods.RENEW_SANDBOXES, request, timeout_s=_ANSWER_S)


async def meet_all(
    endpoints: Iterable[Endpoint], least: Isolation
) -> list[SandboxUnavailableError]:
    """Ask all executors concurrently; returns why some cannot be used.

    After the first answer with sufficient isolation, the others get one more second: a hanging
    executor must not delay healthy ones. `Endpoint.look_after` asks it again later.
    """
    troubles: list[SandboxUnavailableError] = []

    async def meet(endpoint: Endpoint) -> None:
        try:
            await endpoint.meet()
        except SandboxUnavailableError as error:
            troubles.append(error)
        if endpoint.serving and endpoint.isolation and endpoint.isolation.satisfies(least):
            meeting.cancel_scope.deadline = min(
                meeting.cancel_scope.deadline, anyio.current_time() + _GRACE_S
            )

    async with anyio.create_task_group() as meeting:
        for endpoint in endpoints:
            meeting.start_soon(meet, endpoint)
    return troubles


def by_load(endpoints: Iterable[Endpoint], at_least: Isolation) -> list[Endpoint]:
    """Return the available executors, the one with the least load first."""
    able = [
        endpoint
        for endpoint in endpoints
        if endpoint.serving
        and not endpoint.transport.distrusted
        and endpoint.isolation is not None
        and endpoint.isolation.satisfies(at_least)
    ]
    return sorted(able, key=lambda endpoint: len(endpoint.sandboxes))
