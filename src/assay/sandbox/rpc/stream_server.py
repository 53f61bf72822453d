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
from assay.sandbox.rpc.calls import CarriedStream, Desk, Exchange, RelayCaller
from assay.sandbox.rpc.connection import Link, LinkBrokenError
from assay.sandbox.rpc.messages import egress_pb2 as pb
from assay.sandbox.rpc.messages.methods import DIAL, LOOK_UP, METHODS, Method
from assay.sandbox.rpc.sandbox_service import SandboxService

_MOST_CALLS: Final = 4096

OnCaller = Callable[[RelayCaller], None]
"""Receives the caller through which the server sends calls to the client."""


async def serve_relay(
    backend: SandboxBackend,
    stream: anyio.abc.ByteStream,
    *,
    on_caller: OnCaller = lambda _: None,
) -> str:
    """Serve one client until its stream ends; its open sandboxes end with it.

    Returns the reason for the end as text.
    """
    link = Link(stream)
    back = RelayCaller(link, back=True)
    on_caller(back)
    async with _open_keeper(backend) as keeper, anyio.create_task_group() as tasks:

        async def answer(method: Method[Any, Any], exchange: Exchange) -> None:
            requests = exchange.receive(method.request)
            async with aclosing(keeper.answer(method, requests)) as answers:
                async for one in answers:
                    await exchange.send(one)

        desk = Desk(link, answer, tasks, methods=METHODS, most=_MOST_CALLS)

        async def greet() -> None:
            with suppress(LinkBrokenError):
                await link.greet()

        tasks.start_soon(greet)
        try:
            await link.run(lambda frame: (back if frame.back else desk).take(frame))
        finally:
            back.lose()
        tasks.cancel_scope.cancel()
    return link.why


@asynccontextmanager
async def _open_keeper(backend: SandboxBackend) -> AsyncGenerator[SandboxService]:
    async with anyio.create_task_group() as tasks:
        keeper = SandboxService(backend, tasks)
        try:
            yield keeper
        finally:
            with anyio.CancelScope(shield=True):
                await keeper.close()
            tasks.cancel_scope.cancel()


_ANSWER_S: Final = 30.0


class HostDialer:
    """Dials through the connected client; see `assay.sandbox.network.dial.DialerFactory`."""

    def __init__(self) -> None:
        self._caller: RelayCaller | None = None

    def attach(self, caller: RelayCaller) -> None:
        """Set the caller through which dialers send their requests."""
        self._caller = caller

    def dialer(self, policy: Policy) -> Dialing:
        if self._caller is None:
            raise SandboxUnavailableError(
                "the connection to the client is not open yet", dispatch="never_started"
            )
        return FarDialer(policy=policy, caller=self._caller)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarDialer:
    """Dials through the connected client; see `assay.sandbox.network.dial.Dialing`."""

    policy: Policy
    """Only for the ports to listen at; the client decides what is allowed."""
    caller: RelayCaller

    async def addresses(self, host: str) -> tuple[str, ...]:
        try:
            request = pb.LookUpRequest(host=host)
            answer = await self.caller.ask(LOOK_UP, request, timeout_s=_ANSWER_S)
        except AssayError as error:
            raise OSError(str(error)) from error
        if answer.HasField("refusal"):
            _raise(answer.refusal)
        return tuple(answer.addresses)

    async def dial(self, host: str, port: int) -> anyio.abc.ByteStream:
        try:
            exchange = await self.caller.converse(DIAL, pb.DialRequest(host=host, port=port))
        except AssayError as error:
            raise OSError(str(error)) from error
        there = _Connection(self.caller, exchange)
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


class _Connection(CarriedStream):
    def __init__(self, caller: RelayCaller, exchange: Exchange) -> None:
        super().__init__(exchange, pb.DialResponse, lambda data: pb.DialRequest(data=data))
        self._caller = caller

    async def aclose(self) -> None:
        await self._caller.give_up(self._exchange)


def _raise(refusal: pb.Refusal) -> NoReturn:
    if refusal.kind == pb.Refusal.KIND_DENIED:
        raise DeniedError(refusal.why)
    if refusal.kind == pb.Refusal.KIND_NO_SUCH_HOST:
        raise NoSuchHostError(refusal.why)
    raise OSError(refusal.why)
