"""RPC server over a byte stream: serves a backend to the client at the other end."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final

import anyio
import anyio.abc

from assay.contracts.ports import SandboxBackend
from assay.sandbox.rpc.calls import RelayCaller
from assay.sandbox.rpc.connection import Link, LinkBrokenError
from assay.sandbox.rpc.dispatcher import Desk
from assay.sandbox.rpc.messages.methods import METHODS, Method
from assay.sandbox.rpc.sandbox_service import SandboxService
from assay.sandbox.rpc.stream import Exchange

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
