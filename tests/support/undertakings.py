"""Whole runs with a scripted model, in real sandboxes, for tests."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.contracts.events import RunEvent
from assay.contracts.goal import RunLimits, RunRequest, RunResult
from assay.runs.request import RunCallbacks
from assay.runs.runner import start_run
from assay.settings.load import SandboxSettings, Settings

TEXT_ONLY = {"tool_calls": False}
SMALL = {"tool_calls": False, "local": True, "small": True}

Line = str | dict[str, Any]


def settings_in(folder: Path) -> Settings:
    """Keep everything of a run in one folder; nothing is preloaded, so that engines start fast."""
    sandbox = SandboxSettings(preload=(), pool_size=0, runtime_dir=folder / "runtime")
    return Settings(sandbox=sandbox, state_dir=folder / "state")


def a_script(folder: Path, lines: Sequence[Line], facts: dict[str, Any]) -> str:
    """Write a script, and return the name of the model that speaks it."""
    path = folder / "script.jsonl"
    whole = [
        {"facts": facts},
        *(line if isinstance(line, dict) else {"text": line} for line in lines),
    ]
    path.write_text("\n".join(json.dumps(line) for line in whole))
    return f"scripted:{path}"


@dataclass(kw_only=True)
class Story:
    """What happened when a scripted model worked on a goal."""

    folder: Path
    outcome: RunResult
    events: list[RunEvent] = field(default_factory=list[RunEvent])

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


async def tell(  # noqa: PLR0913 - what a story may differ in
    folder: Path,
    lines: Sequence[Line],
    *,
    files: dict[str, str] | None = None,
    facts: dict[str, Any] | None = None,
    checks: tuple[str, ...] = (),
    tests: tuple[str, ...] = (),
    allowed: tuple[str, ...] = (),
    limits: RunLimits | None = None,
    statement: str = "Write the answer",
    listener: Callable[[RunEvent], None] = lambda _: None,
    settings: Settings | None = None,
    notices: list[str] | None = None,
    **more: Any,
) -> Story:
    """Let a scripted model work on a goal in a workspace with these files."""
    workspace = folder / "workspace"
    for name, text in (files or {}).items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    workspace.mkdir(parents=True, exist_ok=True)
    fields: dict[str, Any] = {"memory": "off", **more}
    request = RunRequest(
        goal=statement,
        workspace=workspace,
        checks=checks,
        tests=tests,
        allowed=allowed,
        model=a_script(folder, lines, facts or TEXT_ONLY),
        limits=limits or RunLimits(attempts=3, check_timeout_s=60),
        **fields,
    )
    events: list[RunEvent] = []
    callbacks = RunCallbacks(
        listeners=(events.append, listener),
        on_notice=(lambda _: None) if notices is None else notices.append,
    )
    outcome = await start_run(request, settings or settings_in(folder), callbacks)
    return Story(folder=folder, outcome=outcome, events=events)
