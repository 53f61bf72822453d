"""Egress server of remote sandboxes: this side resolves names, decides and connects.

The remote side's opinion on what is allowed does not count. This side has the allowlist, resolves
names, checks addresses and counts traffic; see `assay.sandbox.network.dial`.
"""

from typing import Any, Final

from assay.contracts.errors import UsageError
from assay.sandbox.network.dial import DeniedError, Dialing, NoSuchHostError
from assay.sandbox.network.forward import TrafficQuota, carry
from assay.sandbox.rpc.messages import egress_pb2
from assay.sandbox.rpc.messages.methods import LOOK_UP, Method
from assay.sandbox.rpc.messages.primitives import MessageError, to_text
from assay.sandbox.rpc.stream import Exchange
from assay.sandbox.rpc.tunnel import CarriedStream

_LONGEST_HOST: Final = 1000
_HIGHEST_PORT: Final = 65535
_LONGEST_REASON: Final = 300
_CROWDED: Final = "more connections than a sandbox may have"


class Outlet:
    """Answers the network requests of one sandbox; closed until `open` sets a dialer."""

    def __init__(self) -> None:
        self._dialer: Dialing | None = None
        self._allowance = TrafficQuota()

    def open(self, dialer: Dialing) -> None:
        """Allow the sandbox to reach what this dialer reaches."""
        self._dialer = dialer

    async def answer(self, method: Method[Any, Any], exchange: Exchange) -> None:
        """See `assay.sandbox.rpc.dispatcher.Answer`."""
        if self._dialer is None:
            raise UsageError("this sandbox has no network access")
        if method is LOOK_UP:
            await self._look_up(self._dialer, exchange)
        else:
            await self._dial(self._dialer, exchange)

    async def _look_up(self, dialer: Dialing, exchange: Exchange) -> None:
        async for request in exchange.receive(egress_pb2.LookUpRequest):
            try:
                addresses = await dialer.addresses(_host(request.host))
                answer = egress_pb2.LookUpResponse(addresses=addresses)
            except (DeniedError, NoSuchHostError, OSError) as error:
                answer = egress_pb2.LookUpResponse(refusal=_refusal(error))
            await exchange.send(answer)
            return

    async def _dial(self, dialer: Dialing, exchange: Exchange) -> None:
        here = CarriedStream(
            exchange, egress_pb2.DialRequest, lambda data: egress_pb2.DialResponse(data=data)
        )
        first = await here.receive_first()
        if not isinstance(first, egress_pb2.DialRequest) or not 0 < first.port <= _HIGHEST_PORT:
            raise MessageError("a connection to no port")
        if not self._allowance.take_connection():
            await exchange.send(egress_pb2.DialResponse(refusal=_refusal(DeniedError(_CROWDED))))
            return
        try:
            try:
                there = await dialer.dial(_host(first.host), first.port)
            except (DeniedError, NoSuchHostError, OSError) as error:
                await exchange.send(egress_pb2.DialResponse(refusal=_refusal(error)))
                return
            async with there:
                await exchange.send(egress_pb2.DialResponse())
                await carry(here, there, self._allowance)
        finally:
            self._allowance.give_back_connection()


def _host(text: str) -> str:
    if len(text) > _LONGEST_HOST:
        raise MessageError(f"a host with a name of {len(text)} characters")
    return text


def _refusal(error: Exception) -> egress_pb2.Refusal:
    kind = egress_pb2.Refusal.KIND_FAILED
    if isinstance(error, DeniedError):
        kind = egress_pb2.Refusal.KIND_DENIED
    elif isinstance(error, NoSuchHostError):
        kind = egress_pb2.Refusal.KIND_NO_SUCH_HOST
    return egress_pb2.Refusal(kind=kind, why=to_text(str(error)[:_LONGEST_REASON]))
