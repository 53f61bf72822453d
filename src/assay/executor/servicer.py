"""Answers gRPC calls: authenticates the client, and passes the call to its `SandboxService`."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any, Final, NoReturn, TypeAlias

import anyio.abc
import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from assay.auth.credentials import Credentials
from assay.contracts.errors import AssayError
from assay.contracts.ports import SandboxBackend
from assay.executor.admission import Admission
from assay.executor.observer import Tracing
from assay.sandbox.rpc.messages.codec import MessageError
from assay.sandbox.rpc.messages.failures import (
    FAILURE_KEY,
    PUSHBACK_KEY,
    SERVICE,
    RequestRefusedError,
    status_of,
    to_failure,
)
from assay.sandbox.rpc.messages.methods import METHODS, Method
from assay.sandbox.rpc.sandbox_service import SandboxService, SandboxServiceConfig

_ANYBODY: Final = "anybody"
"""Name of all clients of an executor without authentication; only on this machine."""
_BEARER: Final = "Bearer "
_CERTIFICATE_NAME: Final = "x509_common_name"

_log = logging.getLogger("assay.executor")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Clients:
    """Clients with open sandboxes, each with its own `SandboxService`."""

    def __init__(
        self,
        backend: SandboxBackend,
        tasks: anyio.abc.TaskGroup,
        *,
        terms: SandboxServiceConfig,
        admission: Admission,
    ) -> None:
        self._backend = backend
        self._tasks = tasks
        self._terms = terms
        self._admission = admission
        self._keepers: dict[str, SandboxService] = {}

    def keeper_of(self, client: str) -> SandboxService:
        if client not in self._keepers:
            self._keepers[client] = SandboxService(
                self._backend,
                self._tasks,
                config=self._terms,
                admission=self._admission.gate_for(client),
            )
        return self._keepers[client]

    async def sweep(self, *, every_s: float) -> None:
        """Close sandboxes that no client uses any more, in an endless loop."""
        while True:
            await anyio.sleep(every_s)
            for keeper in tuple(self._keepers.values()):
                await keeper.close_unused()

    async def close(self) -> None:
        """End all executions of all clients."""
        async with anyio.create_task_group() as closing:
            for keeper in self._keepers.values():
                closing.start_soon(keeper.close)


class Answering:
    """Generic gRPC servicer of the executor."""

    def __init__(
        self,
        clients: Clients,
        credentials: Credentials,
        admission: Admission,
        tracing: Tracing,
    ) -> None:
        self._clients = clients
        self._credentials = credentials
        self._watcher = admission.watcher
        self._tracing = tracing

    def rpc_handlers(self) -> grpc.GenericRpcHandler:
        """Build the handlers for a gRPC server."""
        handlers = {method.name: self._handler(method) for method in METHODS}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _handler(self, method: Method[Any, Any]) -> "grpc.RpcMethodHandler[Any, Any]":
        # All handlers read streams of bytes, also for single requests, so that no request is read
        # or parsed before the client is authenticated. The wire format is the same.
        if method.streams_responses:
            return grpc.stream_stream_rpc_method_handler(
                self._to_many(method), response_serializer=method.response.SerializeToString
            )
        return grpc.stream_unary_rpc_method_handler(
            self._to_one(method), response_serializer=method.response.SerializeToString
        )

    def _to_one(self, method: Method[Any, Any]) -> Callable[..., Any]:
        async def answer(requests: AsyncIterator[bytes], context: Context) -> Message:
            with self._watched(method, context) as call:
                try:
                    async with aclosing(self._answers(method, requests, context)) as answers:
                        return await anext(answers)
                except Exception as error:  # noqa: BLE001 - every call is answered; `fail` sorts errors
                    await call.fail(error)

        return answer

    def _to_many(self, method: Method[Any, Any]) -> Callable[..., Any]:
        async def answer(
            requests: AsyncIterator[bytes], context: Context
        ) -> AsyncGenerator[Message]:
            with self._watched(method, context) as call:
                try:
                    async with aclosing(self._answers(method, requests, context)) as answers:
                        async for response in answers:
                            yield response
                except Exception as error:  # noqa: BLE001 - every call is answered; `fail` sorts errors
                    await call.fail(error)

        return answer

    def _answers(
        self, method: Method[Any, Any], requests: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[Message]:
        client = self._client(method, context)
        parsed = self._parsed(method, requests, client)
        return self._clients.keeper_of(client).answer(method, parsed)

    async def _parsed(
        self, method: Method[Any, Any], requests: AsyncIterator[bytes], client: str
    ) -> AsyncGenerator[Message]:
        async for request in requests:
            try:
                message = method.request.FromString(request)
            except DecodeError as error:
                self._watcher.note_unreadable(client, method.name)
                raise MessageError(f"not a request of {method.name}") from error
            yield message

    def _client(self, method: Method[Any, Any], context: Context) -> str:
        """Return the name of the client.

        Raises:
            RequestRefusedError: If the client is unknown.
        """
        try:
            return self._identify(context)
        except RequestRefusedError as error:
            self._watcher.note_stranger(context.peer(), method.name, str(error))
            _log.warning("refused %s from %s: %s", method.name, context.peer(), error)
            raise

    def _identify(self, context: Context) -> str:
        if self._credentials.tokens is not None:
            given = dict(context.invocation_metadata() or ()).get("authorization", "")
            if not isinstance(given, str) or not given.startswith(_BEARER):
                raise RequestRefusedError(
                    "this executor asks for a token", hint="set sandbox.remote.token_file"
                )
            owner = self._credentials.tokens.current().owner_of(given.removeprefix(_BEARER))
            if owner is None:
                raise RequestRefusedError(
                    "the executor does not know this token",
                    hint="ask its operator for one: `assay executor token NAME`",
                )
            return f"token:{owner}"
        if self._credentials.wants_certificates:
            names = tuple(context.auth_context().get(_CERTIFICATE_NAME, ()))
            if len(names) != 1 or not names[0]:
                raise RequestRefusedError("the certificate has no name")
            return f"cert:{names[0].decode('utf-8', errors='backslashreplace')}"
        return _ANYBODY

    @contextmanager
    def _watched(self, method: Method[Any, Any], context: Context) -> Generator["_Call"]:
        call = _Call(method.name, context)
        began = time.perf_counter()
        with self._tracing.span(method.name, context.invocation_metadata() or ()) as note_status:
            try:
                yield call
            finally:
                note_status(call.status)
                self._watcher.note_call(method.name, call.status, time.perf_counter() - began)


class _Call:
    """One call, and the status of its answer."""

    def __init__(self, method: str, context: Context) -> None:
        self._method = method
        self._context = context
        self.status = "OK"

    async def fail(self, error: Exception) -> NoReturn:
        """Answer with a failure. Never returns."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if not isinstance(error, AssayError | MessageError):
            _log.exception("a fault in %s", self._method, exc_info=error)
        failure = to_failure(error)
        self.status = status_of(failure.code)
        trailing = [(FAILURE_KEY, failure.SerializeToString())]
        if failure.retry_after_s:
            trailing.append((PUSHBACK_KEY, str(int(failure.retry_after_s * 1000)).encode()))
        await self._context.abort(
            grpc.StatusCode[self.status],
            f"{failure.message} ({failure.hint})" if failure.hint else failure.message,
            trailing_metadata=tuple(trailing),
        )
        raise AssertionError("aborting raises")
