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
async def open_task_group() -> AsyncGenerator[anyio.abc.TaskGroup]:
    """Open a task group whose tasks are cancelled at its end.

    An error of the body is raised as it is, and not inside an exception group.
    """
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
