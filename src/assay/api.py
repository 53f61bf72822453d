"""Public Python API: `assay.run` returns a run to await or to watch event by event."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from assay.contracts.events import RunEnded, RunEvent
from assay.contracts.goal import MemoryUse, Policy, RunLimits, RunResult
from assay.runs.request import RunCallbacks, build_request
from assay.runs.runner import start_run
from assay.settings.load import Settings, load_settings, project_notice

_LOG: Final = logging.getLogger("assay.run")
_Carry = Callable[[Callable[[RunEvent], None]], Coroutine[Any, Any, RunResult]]


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run that has not started. `await` it for the outcome, or use `async for` for its events.

    The last event is `RunEnded`, which has the outcome. A caller that leaves the loop early stops
    the run. The first event has the name by which the run can be resumed.
    """

    _carry: _Carry

    def __await__(self) -> Generator[Any, None, RunResult]:
        return self._carry(lambda _: None).__await__()

    async def __aiter__(self) -> AsyncGenerator[RunEvent]:
        queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()

        async def work() -> None:
            try:
                await self._carry(queue.put_nowait)
            finally:
                queue.put_nowait(None)

        # A separate task instead of a task group: a group must not stay open across a `yield`.
        task = asyncio.create_task(work())
        try:
            while (event := await queue.get()) is not None:
                yield event
                if isinstance(event, RunEnded):
                    break
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])


def run(  # noqa: PLR0913 - the options of the command line, with defaults
    goal: str,
    *,
    workspace: str | PathLike[str] | None = None,
    checks: Sequence[str] = (),
    tests: Sequence[str] = (),
    allow: Sequence[str] = (),
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    model: str | None = None,
    limits: RunLimits | None = None,
    screening: Policy | None = None,
    memory: MemoryUse | None = None,
    budget_usd: float | None = None,
    budget_tokens: int | None = None,
    packages: Sequence[str] = (),
    hosts: Sequence[str] = (),
    settings: Settings | None = None,
) -> RunHandle:
    """Carry out a goal and write accepted files into the workspace, or into a new folder.

    Settings provide omitted options. Without `settings`, Assay reads the environment, the
    workspace's `.env` and the settings file, as `assay run` does. Nothing happens until the caller
    awaits or iterates the handle.

    Raises:
        UsageError: If the goal is empty, or a setting is invalid.
    """
    folder = None if workspace is None else Path(workspace)
    if settings is None:
        if folder is not None and (notice := project_notice(folder)):
            _LOG.info("%s", notice)
        settings = load_settings(project=folder)
    request = build_request(
        settings,
        goal,
        workspace=folder,
        checks=tuple(checks),
        tests=tuple(tests),
        allowed=tuple(allow),
        exclude=tuple(exclude),
        include=tuple(include),
        model=model,
        limits=limits,
        screening=screening,
        memory=memory,
        budget_usd=budget_usd,
        budget_tokens=budget_tokens,
        packages=tuple(packages),
        hosts=tuple(hosts),
    )

    async def carry(listener: Callable[[RunEvent], None]) -> RunResult:
        return await start_run(request, settings, RunCallbacks(listeners=(listener,)))

    return RunHandle(carry)
