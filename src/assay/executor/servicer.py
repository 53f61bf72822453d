"""Answers gRPC calls: authenticates the client, and passes the call to its `SandboxService`."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import anyio
import anyio.abc
import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from assay.auth.credentials import Credentials
from assay.contracts.errors import AssayError
from assay.contracts.ports import SandboxBackend
from assay.executor.admission import Admission, ClientAdmission
from assay.executor.observer import CallSpan
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

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from assay.sandbox.rpc.messages import executor_pb2 as pb

_ANYBODY: Final = "anybody"
"""Name of all clients of an executor without authentication; only on this machine."""
_BEARER: Final = "Bearer "
_SWEEP_S: Final = 5.0
_CERTIFICATE_NAME: Final = "x509_common_name"

_log = logging.getLogger("assay.executor")

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ExecutorServicer:
    """Generic gRPC servicer of the executor: one `SandboxService` for each client."""

    def __init__(
        self,
        backend: SandboxBackend,
        tasks: anyio.abc.TaskGroup,
        config: SandboxServiceConfig,
        admission: Admission,
        credentials: Credentials,
        tracer: "Tracer | None",
    ) -> None:
        self._backend = backend
        self._tasks = tasks
        self._config = config
        self._admission = admission
        self._credentials = credentials
        self._observer = admission.observer
        self._tracer = tracer
        self._services: dict[str, SandboxService] = {}

    async def sweep(self) -> None:
        """Close sandboxes that no client uses any more, in an endless loop."""
        while True:
            await anyio.sleep(_SWEEP_S)
            for service in tuple(self._services.values()):
                await service.close_unused()

    async def close(self) -> None:
        """End all executions of all clients."""
        async with anyio.create_task_group() as closing:
            for service in self._services.values():
                closing.start_soon(service.close)

    def rpc_handlers(self) -> grpc.GenericRpcHandler:
        """Build the handlers for a gRPC server."""
        handlers = {method.name: self._handler(method) for method in METHODS}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _handler(self, method: Method[Any, Any]) -> "grpc.RpcMethodHandler[Any, Any]":
        # All handlers read streams of bytes, also for single requests, so that no request is read
        # or parsed before the client is authenticated. The wire format is the same.
        async def many(requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[Message]:
            async with aclosing(self._answers(method, requests, context)) as answers:
                async for response in answers:
                    yield response

        async def one(requests: AsyncIterator[bytes], context: Context) -> Message:
            async with aclosing(self._answers(method, requests, context)) as answers:
                return await anext(answers)

        serializer = method.response.SerializeToString
        if method.streams_responses:
            return grpc.stream_stream_rpc_method_handler(many, response_serializer=serializer)
        return grpc.stream_unary_rpc_method_handler(one, response_serializer=serializer)

    async def _answers(
        self, method: Method[Any, Any], requests: AsyncIterator[bytes], context: Context
    ) -> AsyncGenerator[Message]:
        """Authenticate, trace, count and translate the errors of one call."""
        status, began, span = "OK", time.perf_counter(), None
        if self._tracer is not None:
            metadata = context.invocation_metadata() or ()
            headers = {name: value for name, value in metadata if isinstance(value, str)}
            span = CallSpan(self._tracer, method.name, headers)
        try:
            client = self._client(method, context)
            if client not in self._services:
                self._services[client] = SandboxService(
                    self._backend,
                    self._tasks,
                    config=self._config,
                    admission=ClientAdmission(self._admission, client),
                )
            parsed = self._parsed(method, requests, client)
            async with aclosing(self._services[client].answer(method, parsed)) as answers:
                async for response in answers:
                    yield response
        except Exception as error:  # noqa: BLE001 - every call is answered; `_failure` sorts errors
            failure = _failure(method.name, error)
            status = status_of(failure.code)
            await _abort(context, failure)
        finally:
            if span is not None:
                span.end(status)
            self._observer.calls.labels(method.name, status).observe(time.perf_counter() - began)

    async def _parsed(
        self, method: Method[Any, Any], requests: AsyncIterator[bytes], client: str
    ) -> AsyncGenerator[Message]:
        async for request in requests:
            try:
                message = method.request.FromString(request)
            except DecodeError as error:
                why = "not a request of this method"
                self._observer.note_rejected_call("unreadable", method.name, why, client=client)
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
            peer = context.peer()
            self._observer.note_rejected_call("stranger", method.name, str(error), peer=peer)
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


def _failure(method: str, error: Exception) -> "pb.Failure":
    if not isinstance(error, AssayError | MessageError):
        _log.exception("a fault in %s", method, exc_info=error)
    return to_failure(error)


async def _abort(context: Context, failure: "pb.Failure") -> NoReturn:
    """Answer with a failure. Never returns."""
    trailing = [(FAILURE_KEY, failure.SerializeToString())]
    if failure.retry_after_s:
        trailing.append((PUSHBACK_KEY, str(int(failure.retry_after_s * 1000)).encode()))
    await context.abort(
        grpc.StatusCode[status_of(failure.code)],
        f"{failure.message} ({failure.hint})" if failure.hint else failure.message,
        trailing_metadata=tuple(trailing),
    )
    raise AssertionError("aborting raises")
