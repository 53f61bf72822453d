"""RPC server over a byte stream: serves a backend to the client at the other end.

Network requests of its sandboxes are forwarded to the client, which decides.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import anyio
import anyio.abc

from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.contracts.ports import SandboxBackend
from assay.sandbox.network.dial import DeniedError, Dialing, NoSuchHostError
from assay.sandbox.network.policy import Policy
from assay.sandbox.rpc.calls import Dispatcher, Exchange, StreamTransport, Tunnel
from assay.sandbox.rpc.connection import Connection, ConnectionLostError
from assay.sandbox.rpc.messages import egress_pb2 as pb
from assay.sandbox.rpc.messages.methods import DIAL, LOOK_UP, METHODS, Method
from assay.sandbox.rpc.sandbox_service import SandboxService

_MOST_CALLS: Final = 4096

OnTransport = Callable[[StreamTransport], None]
"""Receives the transport through which the server sends calls to the client."""


async def serve_relay(
    backend: SandboxBackend,
    stream: anyio.abc.ByteStream,
    *,
    on_transport: OnTransport = lambda _: None,
) -> str:
    """Serve one client until its stream ends; its open sandboxes end with it.

    Returns the reason for the end as text.
    """
    connection = Connection(stream)
    back = StreamTransport(connection, back=True)
    on_transport(back)
    async with _open_service(backend) as service, anyio.create_task_group() as tasks:

        async def answer(method: Method[Any, Any], exchange: Exchange) -> None:
            requests = exchange.receive(method.request)
            async with aclosing(service.answer(method, requests)) as answers:
                async for one in answers:
                    await exchange.send(one)

        dispatcher = Dispatcher(connection, answer, tasks, methods=METHODS, most=_MOST_CALLS)

        async def greet() -> None:
            with suppress(ConnectionLostError):
                await connection.greet()

        tasks.start_soon(greet)
        try:
            await connection.run(lambda frame: (back if frame.back else dispatcher).take(frame))
        finally:
            back.lose()
        tasks.cancel_scope.cancel()
    return connection.why


@asynccontextmanager
async def _open_service(backend: SandboxBackend) -> AsyncGenerator[SandboxService]:
    async with anyio.create_task_group() as tasks:
        service = SandboxService(backend, tasks)
        try:
            yield service
        finally:
            with anyio.CancelScope(shield=True):
                await service.close()
            tasks.cancel_scope.cancel()


_ANSWER_S: Final = 30.0


class HostDialer:
    """Dials through the connected client; see `assay.sandbox.network.dial.DialerFactory`."""

    def __init__(self) -> None:
        self._transport: StreamTransport | None = None

    def attach(self, transport: StreamTransport) -> None:
        """Set the transport through which dialers send their requests."""
        self._transport = transport

    def dialer(self, policy: Policy) -> Dialing:
        if self._transport is None:
            raise SandboxUnavailableError(
                "the connection to the client is not open yet", dispatch="never_started"
            )
        return RpcDialer(policy=policy, transport=self._transport)


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
        there = _Connection(self.transport, exchange)
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


class _Connection(Tunnel):
    def __init__(self, transport: StreamTransport, exchange: Exchange) -> None:
        super().__init__(exchange, pb.DialResponse, lambda data: pb.DialRequest(data=data))
        self._transport = transport

    async def aclose(self) -> None:
        await self._transport.give_up(self._exchange)


def _raise(refusal: pb.Refusal) -> NoReturn:
    if refusal.kind == pb.Refusal.KIND_DENIED:
        raise DeniedError(refusal.why)
    if refusal.kind == pb.Refusal.KIND_NO_SUCH_HOST:
        raise NoSuchHostError(refusal.why)
    raise OSError(refusal.why)
