"""Lossless JSON encoding of events and goals."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from assay.contracts.chat import ChatEvent
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.events import RunEvent
from assay.contracts.goal import Goal
from assay.contracts.jsonable import jsonable

FORMAT: Final = 1
"""Increased when older readers would misunderstand; new names alone do not increase it."""

_T = TypeVar("_T")


# Built on first use: most commands read no run, and building takes a while.
@cache
def _events() -> TypeAdapter[RunEvent]:
    return TypeAdapter(Annotated[RunEvent, Field(discriminator="kind")])


@cache
def _dialogues() -> TypeAdapter[ChatEvent]:
    return TypeAdapter(Annotated[ChatEvent, Field(discriminator="kind")])


@cache
def _goals() -> TypeAdapter[Goal]:
    return TypeAdapter(Goal)


def event_to_json(event: RunEvent | ChatEvent) -> dict[str, Any]:
    """Return the JSON of an event with default values: they may change, and the event must not."""
    return jsonable(event)


def event_from_json(fields: object) -> RunEvent:
    """Parse an event; ignores fields of later versions.

    Raises:
        JournalError: If this version does not know the event.
    """
    return _read(_events(), fields, "an event")


def dialogue_from_json(fields: object) -> ChatEvent:
    """Parse a session event.

    Raises:
        JournalError: If this version does not know the event.
    """
    return _read(_dialogues(), fields, "an event of a conversation")


def goal_to_json(goal: Goal) -> dict[str, Any]:
    """Return the JSON of a goal with default values."""
    return jsonable(goal)


def goal_from_json(fields: object) -> Goal:
    """Parse a goal.

    Raises:
        JournalError: If it is not a goal.
    """
    return _read(_goals(), fields, "a goal")


def _read(adapter: TypeAdapter[_T], fields: object, what: str) -> _T:
    try:
        return adapter.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise JournalError(f"this is not {what}: {place}: {first['msg']}") from error
    except UsageError as error:
        # The values check themselves; a stored one was valid.
        raise JournalError(f"this is not {what}: {error}") from error


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Return one line of JSON in the current format, as readable as possible."""
    versioned = {"v": FORMAT, **fields}
    try:
        return json.dumps(versioned, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate from a model or a file name has no UTF-8 encoding; JSON can escape it.
        return json.dumps(versioned).encode() + b"\n"


def fields_of(line: bytes | str) -> dict[str, Any]:
    """Parse one line.

    Raises:
        JournalError: If it is not a line of Assay, or has a later format.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise JournalError("this line is damaged") from error
    if not isinstance(found, dict):
        raise JournalError("this line is damaged")
    fields = cast("dict[str, Any]", found)
    version = fields.get("v")
    if not isinstance(version, int):
        raise JournalError("this line is damaged")
    if version > FORMAT:
        raise JournalError(
            f"this was written in format {version}; this version of Assay knows {FORMAT}",
            hint="use the version of Assay that made it, or a later one",
        )
    return fields
