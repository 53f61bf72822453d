"""gRPC transport: calls the methods of one executor and reports how broken calls ended."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from assay.contracts.errors import AssayError, SandboxUnavailableError
from assay.sandbox.remote.channel import Access
from assay.sandbox.remote.diagnosis import diagnose
from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages.failures import RequestRefusedError, from_failure
from assay.sandbox.rpc.messages.methods import Method, Request, Response
from assay.sandbox.rpc.messages.primitives import MessageError
from assay.sandbox.rpc.messages.statuses import FAILURE_KEY, path_of
from assay.sandbox.rpc.transport import BrokenOffError, UnreachableError

_BROKEN: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
)
"""The statuses with which gRPC reports an unknown outcome."""

_DIAGNOSIS_S: Final = 3.0
_FIRST_LOOK_S: Final = 0.001
_LAST_LOOK_S: Final = 0.05
_AGAIN_S: Final = 1.2
"""How long to wait for a connection after a failed one; slightly more than gRPC's own delay."""


class GrpcCaller:
    """See `assay.sandbox.rpc.transport.Caller`."""

    def __init__(
        self, channel: grpc.aio.Channel, address: str, access: Access, *, connect_s: float
    ) -> None:
        self.address = address
        self.distrusted = ""
        """Why answers of this executor are no longer trusted; empty while they are."""
        self._channel = channel
        self._access = access
        self._connect_s = connect_s
        self._methods: dict[str, Any] = {}

    def distrust(self, why: str) -> None:
        self.distrusted = why

    async def ask(
        self, method: Method[Request, Response], *requests: Request, timeout_s: float | None = None
    ) -> Response:
        await self.connect()
        call = self._multi_callable(method)
        content = _each(requests) if method.streams_requests else requests[0]
        async with self._translating():
            return await call(content, timeout=timeout_s, metadata=self._access.metadata)

    @asynccontextmanager
    async def stream(
        self, method: Method[Request, Response], request: Request
    ) -> AsyncGenerator[AsyncIterator[Response]]:
        await self.connect()
        call = self._multi_callable(method)(request, metadata=self._access.metadata)
        try:
            async with self._translating():
                yield aiter(call)
        finally:
            call.cancel()

    async def connect(self) -> None:
        """Ensure that a connection exists, so that the next request is certainly sent.

        Raises:
            UnreachableError: If no connection exists; includes the cause if known.
        """
        if self.distrusted:
            raise UnreachableError(f"{self.address} is not trusted: {self.distrusted}")
        state = self._channel.get_state(try_to_connect=True)
        # A failed channel stays in that state until a connection succeeds.
        failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        with anyio.move_on_after(min(self._connect_s, _AGAIN_S) if failed else self._connect_s):
            pause_s = _FIRST_LOOK_S
            while state is not grpc.ChannelConnectivity.READY:
                # gRPC can wait for a change, but keeps a cancelled wait: its callback comes when
                # the channel is closed, and perhaps the event loop.
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_LOOK_S)
                state = self._channel.get_state(try_to_connect=True)
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not failed:
                    break
        if state is not grpc.ChannelConnectivity.READY:
            patience_s = min(self._connect_s, _DIAGNOSIS_S)
            look = partial(diagnose, self.address, self._access.identity, patience_s)
            # Only a diagnosis with its own limit; a caller that leaves does not wait for it.
            why, hint = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
            raise UnreachableError(f"the executor {self.address}: {why}", hint=hint)

    def _multi_callable(self, method: Method[Any, Any]) -> Any:
        if method.name not in self._methods:
            kinds = {
                (False, False): self._channel.unary_unary,
                (False, True): self._channel.unary_stream,
                (True, False): self._channel.stream_unary,
            }
            self._methods[method.name] = kinds[method.streams_requests, method.streams_responses](
                path_of(method.name),
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return self._methods[method.name]

    @asynccontextmanager
    async def _translating(self) -> AsyncGenerator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        except anyio.get_cancelled_exc_class():
            # gRPC replaces the cancellation by its own, which no cancel scope would recognize.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise

    def _explained(self, error: grpc.aio.AioRpcError) -> AssayError:
        told = f"the executor {self.address}: {error.details() or error.code().name}"
        for name, value in error.trailing_metadata() or ():
            if name == FAILURE_KEY and isinstance(value, bytes):
                return self._failure(value)
        match error.code():
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                return RequestRefusedError(told)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                why = f"the executor {self.address} did not answer in time"
                return SandboxUnavailableError(why, dispatch="outcome_unknown")
            case code if code in _BROKEN:
                return BrokenOffError(told)
            case _:
                return SandboxUnavailableError(told, dispatch="outcome_unknown")

    def _failure(self, serialized: bytes) -> AssayError:
        try:
            return from_failure(executor_pb2.Failure.FromString(serialized))
        except (DecodeError, MessageError) as error:
            self.distrust(str(error))
            return SandboxUnavailableError(
                f"the executor {self.address} sent what it could not: {error}",
                dispatch="outcome_unknown",
            )


async def _each(requests: tuple[Request, ...]) -> AsyncGenerator[Request]:
    for request in requests:
        yield request
