"""The executors that can be asked: which of them answer, and how much each has to do."""

from collections.abc import Iterable
from typing import Any, Final, cast

import anyio
import grpc.aio
from grpc_health.v1 import health_pb2

from assay.contracts.errors import AssayError
from assay.contracts.execution import Isolation
from assay.sandbox.relay.caller import UnreachableError, distrusting
from assay.sandbox.relay.far import FarSandbox
from assay.sandbox.remote.calling import GrpcCaller
from assay.wire import executor_pb2 as pb
from assay.wire import methods
from assay.wire.plain import member, seconds
from assay.wire.results import ISOLATIONS

_CHECK_EVERY_S: Final = 2.0
_CHECK_S: Final = 5.0
_RENEWALS_PER_LEASE: Final = 4
_ANSWER_S: Final = 20.0

_HealthStatus = cast("Any", health_pb2)


class Station:
    """One executor, and what we have open there."""

    def __init__(self, caller: GrpcCaller, channel: grpc.aio.Channel) -> None:
        self.caller = caller
        self.sandboxes: dict[str, FarSandbox] = {}
        self.isolation: Isolation | None = None
        """None until it has answered."""
        self.digest = ""
        self.serving = False
        self._lease_s = 0.0
        self._check = cast("Any", channel).unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=_HealthStatus.HealthCheckRequest.SerializeToString,
            response_deserializer=_HealthStatus.HealthCheckResponse.FromString,
        )

    async def meet(self) -> None:
        """Ask what it is, and take note that it serves.

        Raises:
            SandboxUnavailableError: If it cannot be reached, or does not let us in.
        """
        request = pb.GetCapabilitiesRequest()
        answer = await self.caller.ask(methods.GET_CAPABILITIES, request, timeout_s=_ANSWER_S)
        with distrusting(self.caller):
            self.isolation = member(ISOLATIONS, answer.isolation, of="isolation")
            self._lease_s = seconds(answer.lease_s, of="a lease")
        self.digest = answer.digest
        self.serving = True

    async def look_after(self) -> None:
        """Keep up what is known of it, and what we have there, for ever."""
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
        await self.caller.connect()
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
        await self.caller.ask(methods.RENEW_SANDBOXES, request, timeout_s=_ANSWER_S)


def by_load(stations: Iterable[Station], at_least: Isolation) -> list[Station]:
    """Return those that can be asked, the one with least to do first."""
    able = [
        station
        for station in stations
        if station.serving
        and not station.caller.distrusted
        and station.isolation is not None
        and station.isolation.satisfies(at_least)
    ]
    return sorted(able, key=lambda station: len(station.sandboxes))
