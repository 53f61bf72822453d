"""Health of the components that the service needs: database, executor and model."""

import time
from collections.abc import Callable
from typing import Final, Literal

import anyio

from assay.contracts.chat import CellStarted, ChatEvent, ToolUsed, TurnEnded
from assay.contracts.errors import AssayError
from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend, trouble_of
from assay.server.db.store import Store

Part = Literal["database", "executor", "model"]
PARTS: Final[tuple[Part, ...]] = ("database", "executor", "model")

_FRESH_S: Final = 10.0
"""Cache time of the executor's result: a check opens a sandbox."""
_WAIT_S: Final = 10.0
_PAID: Final = frozenset({"e2b"})
"""Backends whose sandboxes cost money: the health check opens none."""
_OF_MODEL: Final = frozenset({"model-unavailable", "model-rate-limited", "model-refused"})


class Health:
    """Checks components on demand, and remembers the model's last result."""

    def __init__(
        self, store: Store, backend: SandboxBackend, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._backend = backend
        self._clock = clock
        self._checking = anyio.Lock()
        self._checked_at: float | None = None
        self._executor = ""
        self._model = ""

    async def troubles(self) -> dict[Part, str]:
        """Return the problem of each component; an empty text if there is none."""
        return {
            "database": await self._database_trouble(),
            "executor": await self._executor_trouble(),
            "model": self._model,
        }

    def hear(self, event: ChatEvent) -> None:
        """Learn from a session's events whether the model answers."""
        match event:
            case CellStarted() | ToolUsed():
                self._model = ""
            case TurnEnded(error=None):
                if event.status in {"answered", "out_of_steps"}:
                    self._model = ""
            case TurnEnded(error=error) if error is not None:
                if error.type in _OF_MODEL:
                    self._model = error.detail
                elif error.type == "executor-unavailable":
                    # Force the next check to look again, regardless of the cache.
                    self._checked_at = None
            case _:
                pass

    async def _database_trouble(self) -> str:
        try:
            with anyio.fail_after(_WAIT_S):
                await self._store.check()
        except AssayError as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {_WAIT_S:g} s"
        return ""

    async def _executor_trouble(self) -> str:
        if (trouble := trouble_of(self._backend)) or self._backend.name in _PAID:
            return trouble
        async with self._checking:
            at = self._checked_at
            if at is None or self._clock() - at > _FRESH_S:
                self._executor = await self._open_sandbox()
                self._checked_at = self._clock()
            return self._executor

    async def _open_sandbox(self) -> str:
        try:
            with anyio.fail_after(_WAIT_S):
                async with self._backend.open_sandbox(Limits()):
                    return ""
        except AssayError as error:
            return str(error)
        except TimeoutError:
            return f"no sandbox within {_WAIT_S:g} s"
