"""Keeps an async context open between the request that enters it and the one that leaves it."""

from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import anyio
import anyio.abc

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
