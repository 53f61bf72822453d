"""Async contexts owned by separate tasks, so that any task may open and close them.

Includes contexts that stay open between the request that enters them and the one that leaves them.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

import anyio
import anyio.abc

T = TypeVar("T")


class OwnedContext(Generic[T]):
    """Owns at most one open context."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._leave: anyio.Event | None = None
        self._gone = anyio.Event()

    async def take(self, opening: AbstractAsyncContextManager[T]) -> T:
        """Open a context, then close the previous one, which stays open if opening fails.

        Raises:
            Exception: Any error of the opening.
        """
        leave, gone = anyio.Event(), anyio.Event()
        opened = await self._tasks.start(self._sit, opening, leave, gone)
        if isinstance(opened, Exception):
            raise opened
        await self.vacate()
        self._leave, self._gone = leave, gone
        return opened

    async def vacate(self) -> None:
        """Close the open context, and wait until it is closed."""
        if self._leave is not None:
            self._leave.set()
            self._leave = None
            await self._gone.wait()

    async def _sit(
        self,
        opening: AbstractAsyncContextManager[T],
        leave: anyio.Event,
        gone: anyio.Event,
        *,
        task_status: anyio.abc.TaskStatus[T | Exception],
    ) -> None:
        told = False
        try:
            async with opening as opened:
                task_status.started(opened)
                told = True
                await leave.wait()
        except Exception as error:
            if told:
                raise
            task_status.started(error)
        finally:
            gone.set()


@asynccontextmanager
async def open_seats() -> AsyncGenerator[anyio.abc.TaskGroup]:
    """Open a task group for owned contexts; leaving it closes those that are still open."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


Thing = TypeVar("Thing")


class Held(Generic[Thing]):
    """A context in its own task, because the same task must enter and leave it."""

    def __init__(self) -> None:
        self._thing: Thing | None = None
        self._failure: Exception | None = None
        self._entered = anyio.Event()
        self._leave = anyio.Event()
        self._left = anyio.Event()
        self._scope = anyio.CancelScope()

    async def enter(
        self, context: AbstractAsyncContextManager[Thing], tasks: anyio.abc.TaskGroup
    ) -> Thing:
        """Enter the context, and raise its errors; cancellation leaves the context again."""
        tasks.start_soon(self._live, context)
        try:
            await self._entered.wait()
        except BaseException:
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._left.wait()
            raise
        if self._failure is not None:
            raise self._failure
        return self.thing

    @property
    def thing(self) -> Thing:
        assert self._thing is not None, "only what was entered is asked for"  # noqa: S101 - see `enter`
        return self._thing

    async def leave(self) -> None:
        """Leave the context, and wait until that is done."""
        self._leave.set()
        await self._left.wait()

    async def _live(self, context: AbstractAsyncContextManager[Thing]) -> None:
        try:
            with self._scope:
                async with context as self._thing:
                    self._entered.set()
                    await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - `enter` raises it; after that no caller is left
            self._failure = error
        finally:
            self._entered.set()
            self._left.set()
