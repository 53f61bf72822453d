"""RPC client over a byte stream: uses a backend at the other end, and serves its network requests.

The remote side's opinion on what is allowed does not count. This side has the allowlist, resolves
names, checks addresses and counts traffic; see `assay.sandbox.network.dial`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import SandboxUnavailableError, UsageError
from assay.sandbox.network.dial import DeniedError, Dialing, NoSuchHostError
from assay.sandbox.network.proxy import TrafficQuota, carry
from assay.sandbox.rpc.calls import Answer, Dispatcher, Exchange, StreamTransport, Tunnel
from assay.sandbox.rpc.client_sandbox import ResultLabel, RpcBackend
from assay.sandbox.rpc.connection import Connection, ConnectionLostError
from assay.sandbox.rpc.messages import egress_pb2, executor_pb2, methods
from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.codec import MessageError, to_text
from assay.sandbox.rpc.messages.methods import EGRESS_METHODS, LOOK_UP, Method

_PING_S: Final = 15.0
_SILENCE_S: Final = 60.0
_MOST_CALLS_BACK: Final = 256


@asynccontextmanager
async def open_relay(
    stream: anyio.abc.ByteStream,
    *,
    greeting_s: float = 60.0,
    answer_back: Answer | None = None,
    label: ResultLabel | None = None,
) -> AsyncGenerator[RpcBackend]:
    """Use the backend at the other end of a stream; leaving the context closes the stream.

    `answer_back` answers calls from the other side; without it, such a call is a protocol error.
    `label` names the backend and its isolation; without it, the other side does.

    Raises:
        SandboxUnavailableError: If the other end does not answer, or not with this protocol.
    """
    connection = Connection(stream)
    transport = StreamTransport(connection)
    async with open_task_group() as tasks:
        dispatcher = None
        if answer_back is not None:
            dispatcher = Dispatcher(
                connection,
                answer_back,
                tasks,
                methods=EGRESS_METHODS,
                most=_MOST_CALLS_BACK,
                back=True,
            )

        def take(frame: pb.Frame) -> None:
            if not frame.back:
                transport.take(frame)
            elif dispatcher is not None:
                dispatcher.take(frame)
            else:
                raise MessageError(f"call {frame.call} is a request, and this side answers none")

        async def run() -> None:
            try:
                await connection.run(take)
            finally:
                transport.lose()

        async def keep_alive() -> None:
            await connection.keep_alive(every_s=_PING_S, silence_s=_SILENCE_S)

        tasks.start_soon(run)
        try:
            try:
                with anyio.fail_after(greeting_s):
                    await connection.greet()
                    capabilities = await transport.ask(
                        methods.GET_CAPABILITIES, executor_pb2.GetCapabilitiesRequest()
                    )
            except (TimeoutError, ConnectionLostError) as error:
                why = str(error) or f"no answer within {greeting_s:g} s"
                raise SandboxUnavailableError(
                    f"the sandbox cannot be reached: {why}", dispatch="never_started"
                ) from error
            tasks.start_soon(keep_alive)
            yield RpcBackend(transport, capabilities, label)
        finally:
            connection.end("the connection was closed on this side")


_LONGEST_HOST: Final = 1000
_HIGHEST_PORT: Final = 65535
_LONGEST_REASON: Final = 300
_CROWDED: Final = "more connections than a sandbox may have"


class EgressServer:
    """Answers the network requests of one sandbox; closed until `open` sets a dialer."""

    def __init__(self) -> None:
        self._dialer: Dialing | None = None
        self._allowance = TrafficQuota()

    def open(self, dialer: Dialing) -> None:
        """Allow the sandbox to reach what this dialer reaches."""
        self._dialer = dialer

    async def answer(self, method: Method[Any, Any], exchange: Exchange) -> None:
        """See `assay.sandbox.rpc.calls.Answer`."""
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
        here = Tunnel(
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
