"""Transport interface of the RPC client: calls a method and reports how a failed call ended."""

from collections.abc import AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Protocol

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.rpc.messages.methods import Method, Request, Response
from assay.sandbox.rpc.messages.primitives import MessageError


class BrokenOffError(SandboxUnavailableError):
    """A call broke off, and the remote side may still carry it out; the client can ask."""

    def __init__(self, message: str) -> None:
        super().__init__(message, dispatch="outcome_unknown")


class UnreachableError(SandboxUnavailableError):
    """The remote side received nothing. Another executor may answer, or this one later."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, dispatch="never_started", hint=hint)


class Caller(Protocol):
    """Calls methods of one remote side.

    Errors of the closed table are raised as they are. Other failures raise
    `SandboxUnavailableError`: `never_started` only if the remote side cannot have seen the whole
    request, and `BrokenOffError` if the client can ask for the outcome.
    """

    async def ask(
        self, method: Method[Request, Response], *requests: Request, timeout_s: float | None = None
    ) -> Response:
        """Call a method that has one answer; `None` waits as long as the connection lives."""
        ...

    def stream(
        self, method: Method[Request, Response], request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[Response]]:
        """Call a method that has many answers; leaving the context cancels the rest."""
        ...

    def distrust(self, why: str) -> None:
        """Mark the connection as untrusted after an impossible answer, and end it."""
        ...


@contextmanager
def distrusting(caller: Caller) -> Generator[None]:
    """End the connection when an answer cannot be right."""
    try:
        yield
    except MessageError as error:
        caller.distrust(str(error))
        raise SandboxUnavailableError(
            f"the other side sent what it could not: {error}", dispatch="outcome_unknown"
        ) from error
