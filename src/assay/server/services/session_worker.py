"""A worker task for one open session; it runs one job at a time."""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

import anyio

from assay.chat.open_session import Conversation
from assay.contracts.errors import AssayError
from assay.server.errors import RequestRejectedError

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Job(Generic[T]):
    """A job for the session."""

    work: Callable[[Conversation], Awaitable[T]]
    dropped: Callable[[], None]
    """Called if the job never starts."""
    done: anyio.Event = field(default_factory=anyio.Event)
    value: T | None = None
    error: Exception | None = None

    async def wait(self) -> T:
        """Return the result of the job, or raise its error."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class SessionWorker:
    """Opens a session, runs jobs, and closes the session when it is idle or closed."""

    def __init__(
        self, opening: Callable[[], AbstractAsyncContextManager[Conversation]], idle_s: float
    ) -> None:
        self._opening = opening
        self._idle_s = idle_s
        self._order: Job[Any] | None = None
        self._news = anyio.Event()
        self._conversation: Conversation | None = None
        self._failure: Exception | None = None
        self._ready = anyio.Event()
        self.ended = anyio.Event()
        self.closing = False
        self.settling = False
        """The job has finished, and its results are being stored."""
        self.last_used = time.monotonic()

    @property
    def busy(self) -> bool:
        return self._order is not None and not self.settling

    async def settled(self) -> None:
        """Wait for the results of a finished job to be stored."""
        if self._order is not None and self.settling:
            await self._order.done.wait()

    async def opened(self) -> Conversation | None:
        """Wait until the session is open, or raise its error; None if it has closed meanwhile."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return None if self.closing else self._conversation

    def give(
        self,
        work: Callable[[Conversation], Awaitable[T]],
        dropped: Callable[[], None] = lambda: None,
    ) -> Job[T]:
        """Submit a job.

        Raises:
            RequestRejectedError: If another job is running.
        """
        if self._order is not None:
            raise RequestRejectedError(
                "a turn of this session is under way", why="busy", hint="wait for it, or cancel it"
            )
        order = Job(work=work, dropped=dropped)
        self._order = order
        self._news.set()
        return order

    def interrupt(self) -> None:
        """Interrupt the running turn, if there is one."""
        if self._conversation is not None:
            self._conversation.dialogue.interrupt()

    def close(self) -> None:
        """Close after the current job."""
        self.closing = True
        self._news.set()

    async def live(self) -> None:
        """Keep the session open; return when it is closed."""
        try:
            async with self._opening() as conversation:
                self._conversation = conversation
                self._ready.set()
                await self._attend(conversation)
        except Exception as error:  # noqa: BLE001 - re-raised to the caller; other sessions continue
            if self._ready.is_set() or not isinstance(error, AssayError):
                _LOG.error("a conversation failed: %s", error, exc_info=error)
            self._failure = error
        finally:
            self.closing = True
            self._ready.set()
            self.ended.set()
            if (order := self._order) is not None and not order.done.is_set():
                order.dropped()
                order.error = RequestRejectedError("the service is ending", why="overloaded")
                order.done.set()

    async def _attend(self, conversation: Conversation) -> None:
        while True:
            with anyio.move_on_after(self._idle_s):
                await self._news.wait()
            self._news = anyio.Event()
            if self._order is None:
                # The session was idle for too long, or `close` was called.
                self.closing = True
                return
            await self._carry_out(self._order, conversation)
            if self.closing:
                return

    async def _carry_out(self, order: Job[Any], conversation: Conversation) -> None:
        try:
            order.value = await order.work(conversation)
        except Exception as error:  # noqa: BLE001 - re-raised to the caller
            order.error = error
            if not isinstance(error, AssayError):
                _LOG.critical("%s", error, exc_info=error)
        finally:
            self.last_used = time.monotonic()
            self._order = None
            self.settling = False
            order.done.set()
