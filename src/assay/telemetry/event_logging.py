"""Log entries for events of runs and sessions: kinds, numbers and ids, never content.

The id leads to the run or session, which has the content.
"""

import logging
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any, Final

from assay.contracts.chat import CellOutputDelta, ChatEvent, is_passing
from assay.contracts.events import OutputDelta, RunEnded, RunEvent, TextDelta
from assay.contracts.messages import Usage

_RUNS: Final = logging.getLogger("assay.run")
_CONVERSATIONS: Final = logging.getLogger("assay.chat")
_TOLD: Final = frozenset({"model", "tool", "status"})
"""Text fields that contain only names."""


def log_run_events(run: str) -> Callable[[RunEvent], None]:
    """Return a listener that logs the events of a run."""

    def note(event: RunEvent) -> None:
        if isinstance(event, TextDelta | OutputDelta):
            return
        more = facts_of(event.outcome) if isinstance(event, RunEnded) else {}
        _RUNS.info("%s", event.kind, extra={"run": run} | facts_of(event) | more)

    return note


def note_dialogue(session: str) -> Callable[[ChatEvent], None]:
    """Return a listener that logs the events of a session."""

    def note(event: ChatEvent) -> None:
        if not is_passing(event) and not isinstance(event, CellOutputDelta):
            _CONVERSATIONS.info("%s", event.kind, extra={"session": session} | facts_of(event))

    return note


def facts_of(event: Any) -> dict[str, Any]:
    """Return the numbers and names of an event, without any text that a person could write."""
    found: dict[str, Any] = {}
    for field in fields(event):
        value = getattr(event, field.name)
        match value:
            case Enum():
                found[field.name] = value.value
            case bool() | int() | float():
                found[field.name] = value
            case Usage():
                found |= {name: fact for name, fact in facts_of(value).items() if fact}
            case str() if field.name in _TOLD:
                found[field.name] = value
            case _:
                pass
    return found
