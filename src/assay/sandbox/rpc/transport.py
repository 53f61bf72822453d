"""What the near side needs of a transport: to call a method, and to know what became of it."""

from collections.abc import AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Protocol

from assay.contracts.errors import SandboxUnavailableError
from assay.sandbox.rpc.messages.methods import Method, Request, Response
from assay.sandbox.rpc.messages.primitives import MessageError


class BrokenOffError(SandboxUnavailableError):
    """A call broke off, and the far side may be going on with it: it can be asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, dispatch="outcome_unknown")


class UnreachableError(SandboxUnavailableError):
    """Nothing could be sent to the far side. Another one may answer, or this one later."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, dispatch="never_started", hint=hint)


class Caller(Protocol):
    """Calls methods of one far side.

    Errors of the closed table arrive as themselves. What else goes wrong is a
    `SandboxUnavailableError`: `never_started` only if the far side cannot have seen the whole
    request, and `BrokenOffError` if it can be asked what became of it.
    """

    async def ask(
        self, method: Method[Request, Response], *requests: Request, timeout_s: float | None = None
    ) -> Response:
        """Call a method that has one answer; `None` waits as long as the connection lives."""
        ...

    def stream(
        self, method: Method[Request, Response], request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[Response]]:
        """Call a method that has many answers; leaving the context gives up the rest."""
        ...

    def distrust(self, why: str) -> None:
        """Take note that an answer could not rightly come, and end what it came by."""
        ...


@contextmanager
def distrusting(caller: Caller) -> Generator[None]:
    """Turn an answer that cannot be right into the end of the connection."""
    try:
        yield
    except MessageError as error:
        caller.distrust(str(error))
        raise SandboxUnavailableError(
            f"the other side sent what it could not: {error}", dispatch="outcome_unknown"
        ) from error
