"""A worker task for one open session; it runs one job at a time."""

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

import anyio

from assay.chat.session import ChatSession
from assay.contracts.errors import AssayError
from assay.server.errors import RequestRejectedError

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Job(Generic[T]):
    """A job for the session."""

    work: Callable[[ChatSession], Awaitable[T]]
    started: anyio.Event = field(default_factory=anyio.Event)
    """The work may set this when nothing can reject it any more; its end sets it, too."""
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
        self, opening: Callable[[], AbstractAsyncContextManager[ChatSession]], idle_s: float
    ) -> None:
        self._opening = opening
        self._idle_s = idle_s
        self._job: Job[Any] | None = None
        self._wake = anyio.Event()
        self._chat: ChatSession | None = None
        self._failure: Exception | None = None
        self._ready = anyio.Event()
        self.ended = anyio.Event()
        self.closing = False
        self.settling = False
        """The job has finished, and its results are being stored."""
        self.last_used = time.monotonic()

    @property
    def busy(self) -> bool:
        return self._job is not None and not self.settling

    async def settled(self) -> None:
        """Wait for the results of a finished job to be stored."""
        if self._job is not None and self.settling:
            await self._job.done.wait()

    async def opened(self) -> ChatSession | None:
        """Wait until the session is open, or raise its error; None if it has closed meanwhile."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return None if self.closing else self._chat

    def submit(self, work: Callable[[ChatSession], Awaitable[T]]) -> Job[T]:
        """Submit a job.

        Raises:
            RequestRejectedError: If another job is running.
        """
        if self._job is not None:
            raise RequestRejectedError(
                "a turn of this session is under way", why="busy", hint="wait for it, or cancel it"
            )
        self._job = job = Job(work=work)
        self._wake.set()
        return job

    def interrupt(self) -> None:
        """Interrupt the running turn, if there is one."""
        if self._chat is not None:
            self._chat.interrupt()

    def close(self) -> None:
        """Close after the current job."""
        self.closing = True
        self._wake.set()

    async def run(self) -> None:
        """Keep the session open; return when it is closed."""
        try:
            async with self._opening() as self._chat:
                self._ready.set()
                while True:
                    with anyio.move_on_after(self._idle_s):
                        await self._wake.wait()
                    self._wake = anyio.Event()
                    if self._job is None:
                        # The session was idle for too long, or `close` was called.
                        self.closing = True
                    else:
                        await self._run_job(self._job, self._chat)
                    if self.closing:
                        break
        except Exception as error:  # noqa: BLE001 - re-raised to the caller; other sessions continue
            if self._ready.is_set() or not isinstance(error, AssayError):
                _LOG.error("a conversation failed: %s", error, exc_info=error)
            self._failure = error
        finally:
            self.closing = True
            self._ready.set()
            self.ended.set()
            if (job := self._job) is not None and not job.done.is_set():
                job.error = RequestRejectedError("the service is ending", why="overloaded")
                job.started.set()
                job.done.set()

    async def _run_job(self, job: Job[Any], chat: ChatSession) -> None:
        try:
            job.value = await job.work(chat)
        except Exception as error:  # noqa: BLE001 - re-raised to the caller
            job.error = error
            if not isinstance(error, AssayError):
                _LOG.critical("%s", error, exc_info=error)
        finally:
            self.last_used = time.monotonic()
            self._job = None
            self.settling = False
            job.started.set()
            job.done.set()
