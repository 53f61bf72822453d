"""RPC client over a byte stream: uses a backend at the other end."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.abc

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.rpc.calls import RelayCaller
from assay.sandbox.rpc.client_sandbox import FarBackend
from assay.sandbox.rpc.connection import Link, LinkBrokenError
from assay.sandbox.rpc.dispatcher import Answer, Desk
from assay.sandbox.rpc.messages import executor_pb2, methods
from assay.sandbox.rpc.messages import relay_pb2 as pb
from assay.sandbox.rpc.messages.methods import EGRESS_METHODS
from assay.sandbox.rpc.messages.primitives import MessageError

_PING_S: Final = 15.0
_SILENCE_S: Final = 60.0
_MOST_CALLS_BACK: Final = 256


@asynccontextmanager
async def open_relay(
    stream: anyio.abc.ByteStream, *, greeting_s: float = 60.0, answer_back: Answer | None = None
) -> AsyncGenerator[FarBackend]:
    """Use the backend at the other end of a stream; leaving the context closes the stream.

    `answer_back` answers calls from the other side; without it, such a call is a protocol error.

    Raises:
        SandboxUnavailableError: If the other end does not answer, or not with this protocol.
    """
    link = Link(stream)
    caller = RelayCaller(link)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        desk = _desk_for(answer_back, link, tasks)

        async def run() -> None:
            try:
                await link.run(lambda frame: (desk if frame.back else caller).take(frame))
            finally:
                caller.lose()

        tasks.start_soon(run)
        try:
            backend = await _greet(link, caller, greeting_s)
            tasks.start_soon(_keep_alive, link)
            yield backend
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        finally:
            link.end("the connection was closed on this side")
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _NoDesk:
    """Rejects all calls from the other side."""

    def take(self, frame: pb.Frame) -> None:
        raise MessageError(f"call {frame.call} is a request, and this side answers none")


def _desk_for(answer: Answer | None, link: Link, tasks: anyio.abc.TaskGroup) -> Desk | _NoDesk:
    if answer is None:
        return _NoDesk()
    return Desk(link, answer, tasks, methods=EGRESS_METHODS, most=_MOST_CALLS_BACK, back=True)


async def _greet(link: Link, caller: RelayCaller, greeting_s: float) -> FarBackend:
    try:
        with anyio.fail_after(greeting_s):
            await link.greet()
            capabilities = await caller.ask(
                methods.GET_CAPABILITIES, executor_pb2.GetCapabilitiesRequest()
            )
    except (TimeoutError, LinkBrokenError) as error:
        why = str(error) or f"no answer within {greeting_s:g} s"
        raise SandboxUnavailableError(
            f"the sandbox cannot be reached: {why}", dispatch="never_started"
        ) from error
    return FarBackend(caller, capabilities)


async def _keep_alive(link: Link) -> None:
    await link.keep_alive(every_s=_PING_S, silence_s=_SILENCE_S)
