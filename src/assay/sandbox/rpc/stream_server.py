"""RPC server over a byte stream: serves a backend to the client at the other end.

Network requests of its sandboxes are forwarded to the client, which decides.
"""

from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import anyio
import anyio.abc

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.contracts.ports import SandboxBackend
from assay.sandbox.network.dial import DeniedError, Dialing, NoSuchHostError
from assay.sandbox.network.policy import Policy
from assay.sandbox.rpc.calls import Dispatcher, Exchange, StreamTransport, Tunnel
from assay.sandbox.rpc.connection import Connection, ConnectionLostError
from assay.sandbox.rpc.messages import egress_pb2 as pb
from assay.sandbox.rpc.messages.methods import DIAL, LOOK_UP, METHODS, Method
from assay.sandbox.rpc.sandbox_service import SandboxService, SandboxServiceConfig

_MOST_CALLS: Final = 4096


async def serve_relay(
    backend: SandboxBackend,
    stream: anyio.abc.ByteStream,
    dialer: "HostDialer | None" = None,
    *,
    config: SandboxServiceConfig | None = None,
) -> str:
    """Serve one client until its stream ends; its open sandboxes end with it.

    Returns the reason for the end as text.
    """
    connection = Connection(stream)
    back = StreamTransport(connection, back=True)
    if dialer is not None:
        dialer.transport = back
    async with open_task_group() as tasks:
        service = SandboxService(backend, tasks, config=config)

        async def answer(method: Method[Any, Any], exchange: Exchange) -> None:
            requests = exchange.receive(method.request)
            async with aclosing(service.answer(method, requests)) as answers:
                async for one in answers:
                    await exchange.send(one)

        async def greet() -> None:
            with suppress(ConnectionLostError):
                await connection.greet()

        try:
            # The calls end before the sandboxes that they use.
            async with open_task_group() as calls:
                dispatcher = Dispatcher(
                    connection, answer, calls, methods=METHODS, most=_MOST_CALLS
                )
                calls.start_soon(greet)
                try:
                    await connection.run(
                        lambda frame: (back if frame.back else dispatcher).take(frame)
                    )
                finally:
                    back.lose()
        finally:
            with anyio.CancelScope(shield=True):
                await service.close()
    return connection.why


_ANSWER_S: Final = 30.0


class HostDialer:
    """Dials through the connected client; see `assay.sandbox.network.dial.DialerFactory`."""

    def __init__(self) -> None:
        self.transport: StreamTransport | None = None
        """Sends the requests to the client; None until it is connected."""

    def dialer(self, policy: Policy) -> Dialing:
        if self.transport is None:
            raise SandboxUnavailableError(
                "the connection to the client is not open yet", dispatch="never_started"
            )
        return RpcDialer(policy=policy, transport=self.transport)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcDialer:
    """Dials through the connected client; see `assay.sandbox.network.dial.Dialing`."""

    policy: Policy
    """Only for the ports to listen at; the client decides what is allowed."""
    transport: StreamTransport

    async def addresses(self, host: str) -> tuple[str, ...]:
        try:
            request = pb.LookUpRequest(host=host)
            answer = await self.transport.ask(LOOK_UP, request, timeout_s=_ANSWER_S)
        except AssayError as error:
            raise OSError(str(error)) from error
        if answer.HasField("refusal"):
            _raise(answer.refusal)
        return tuple(answer.addresses)

    async def dial(self, host: str, port: int) -> anyio.abc.ByteStream:
        try:
            exchange = await self.transport.converse(DIAL, pb.DialRequest(host=host, port=port))
        except AssayError as error:
            raise OSError(str(error)) from error
        there = Tunnel(
            exchange,
            pb.DialResponse,
            lambda data: pb.DialRequest(data=data),
            on_close=self.transport.give_up,
        )
        try:
            with anyio.fail_after(_ANSWER_S):
                first = await there.receive_first()
            if isinstance(first, pb.DialResponse) and first.HasField("refusal"):
                _raise(first.refusal)
        except anyio.BrokenResourceError as error:
            await there.aclose()
            raise OSError("the way out is gone") from error
        except BaseException:
            await there.aclose()
            raise
        return there


def _raise(refusal: pb.Refusal) -> NoReturn:
    if refusal.kind == pb.Refusal.KIND_DENIED:
        raise DeniedError(refusal.why)
    if refusal.kind == pb.Refusal.KIND_NO_SUCH_HOST:
        raise NoSuchHostError(refusal.why)
    raise OSError(refusal.why)
