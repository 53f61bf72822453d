"""Versioned JSON lines of runs and sessions, parsed back without loss."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from assay.contracts.chat import ChatEvent
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.events import RunEvent
from assay.contracts.goal import RunRequest
from assay.files import json_line, whole_lines

FORMAT: Final = 1
"""Increased when older readers would misunderstand; new names alone do not increase it."""

_T = TypeVar("_T")


# Built on first use: most commands read no run, and building takes a while.
@cache
def _adapters() -> Mapping[str, TypeAdapter[Any]]:
    return {
        "an event": TypeAdapter(Annotated[RunEvent, Field(discriminator="kind")]),
        "an event of a session": TypeAdapter(Annotated[ChatEvent, Field(discriminator="kind")]),
        "a request": TypeAdapter(RunRequest),
    }


def event_from_json(fields: object) -> RunEvent:
    """Parse an event; ignores fields of later versions.

    Raises:
        JournalError: If this version does not know the event.
    """
    return _parse("an event", fields)


def chat_event_from_json(fields: object) -> ChatEvent:
    """Parse a session event; raises the errors of `event_from_json`."""
    return _parse("an event of a session", fields)


def request_from_json(fields: object) -> RunRequest:
    """Parse the stored request of a run; raises the errors of `event_from_json`."""
    return _parse("a request", fields)


def _parse(what: str, fields: object) -> Any:
    try:
        return _adapters()[what].validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise JournalError(f"this is not {what}: {place}: {first['msg']}") from error
    except UsageError as error:
        # The values check themselves; a stored one was valid.
        raise JournalError(f"this is not {what}: {error}") from error


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Return one line of JSON in the current format."""
    return json_line({"v": FORMAT, **fields})


def fields_of(line: bytes | str) -> dict[str, Any]:
    """Parse one line.

    Raises:
        JournalError: If it is not a line of Assay, or has a later format.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise JournalError("this line is damaged") from error
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    version = fields.get("v")
    if not isinstance(version, int):
        raise JournalError("this line is damaged")
    if version > FORMAT:
        raise JournalError(
            f"this was written in format {version}; this version of Assay knows {FORMAT}",
            hint="use the version of Assay that made it, or a later one",
        )
    return fields


def parse_lines(
    path: Path, lines: Iterable[bytes], parse: Callable[[dict[str, Any]], _T]
) -> Iterator[_T]:
    """Parse the lines of a file.

    Raises:
        JournalError: If a line is damaged, or of a later version; it names the file and the line.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield parse(fields_of(line))
        except JournalError as error:
            raise JournalError(f"{path}:{number}: {error}", hint=error.hint) from error
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{path}:{number}: this line is damaged") from error


def read_log(path: Path, parse: Callable[[dict[str, Any]], _T]) -> Iterator[_T]:
    """Read a log, also while a process writes it; skips an incomplete last line.

    Raises:
        JournalError: If it cannot be read, or for a line as in `parse_lines`.
    """
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise JournalError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    yield from parse_lines(path, lines, parse)
