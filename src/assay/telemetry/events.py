"""Events in logs and traces: log entries of runs and sessions, and names of spans and attributes.

Log entries hold kinds, numbers and ids, never content; the id leads to the run or session, which
has the content. The names follow OpenTelemetry's conventions for generative AI and HTTP, which
still change.
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


INVOKE_AGENT: Final = "invoke_agent assay"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
ERROR: Final = "error.type"

METHOD: Final = "http.request.method"
ROUTE: Final = "http.route"
STATUS: Final = "http.response.status_code"

RUN: Final = "assay.run"
TURN_STATUS: Final = "assay.turn.status"
RUN_STATUS: Final = "assay.run.status"
ATTEMPT: Final = "assay.attempt"
VERDICT: Final = "assay.verdict"
