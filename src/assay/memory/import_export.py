"""Export of records as JSON lines, and import with checks of all values."""

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError

from assay.contracts.errors import UsageError
from assay.contracts.lessons import Failure
from assay.memory.snippets import SnippetRecord, snippet_record_of
from assay.memory.types import FailureRecord, Scope, Tally, record_of

_FORMAT: Final = "assay-memory"
_VERSION: Final = 2
"""Version 1 had no snippets; import reads it too."""
_RECORD: Final = TypeAdapter(FailureRecord)
_SNIPPET: Final = TypeAdapter(SnippetRecord)
_MAX_NAME: Final = 100
_MAX_LINE: Final = 100_000
_MOST: Final = 1_000_000_000
"""The upper limit of any count."""


def export_lines(records: Iterable[FailureRecord | SnippetRecord]) -> Iterator[str]:
    """Write a header line, then one line for each record."""
    yield json.dumps({"format": _FORMAT, "version": _VERSION})
    for record in records:
        fields = asdict(record)
        yield json.dumps({"snippet": fields} if isinstance(record, SnippetRecord) else fields)


def import_lines(lines: Iterable[str], *, shared: bool) -> Iterator[FailureRecord | SnippetRecord]:
    """Read exported records; with `shared`, every project on this machine sees them.

    Import truncates texts, removes secrets and assigns new names, as for records of this machine.
    It skips snippets that this version would not store; their tests run here before any use.

    Raises:
        UsageError: If a line is not an exported record.
    """
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        if not line.strip():
            continue
        fields = _parsed(number, line)
        if number == 1:
            _check_header(fields)
            continue
        try:
            if "snippet" in fields:
                snippet = _SNIPPET.validate_json(json.dumps(fields["snippet"]), strict=True)
                if (cleaned := _cleaned_snippet(snippet, shared=shared)) is not None:
                    yield cleaned
            else:
                yield _cleaned(_RECORD.validate_json(line, strict=True), shared=shared)
        except ValidationError as error:
            wrong = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise UsageError(
                f"line {number}: {wrong or 'the record'} is missing or of the wrong kind",
                hint="import what `assay memory export` has written",
            ) from error


def _parsed(number: int, line: str) -> dict[str, Any]:
    hint = "import what `assay memory export` has written"
    if len(line) > _MAX_LINE:
        raise UsageError(f"line {number} is too long for a record", hint=hint)
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UsageError(f"line {number} is not JSON", hint=hint) from error
    if not isinstance(fields, dict):
        raise UsageError(f"line {number} is not a JSON object", hint=hint)
    return cast("dict[str, Any]", fields)


def _check_header(fields: dict[str, Any]) -> None:
    if fields.get("format") != _FORMAT:
        raise UsageError(
            "this is no export of a memory", hint="import what `assay memory export` has written"
        )
    if fields.get("version") not in {1, _VERSION}:
        raise UsageError(
            f"this export has version {fields.get('version')!r}, and {_VERSION} is the newest",
            hint="export it again with this version of Assay",
        )


def _cleaned(record: FailureRecord, *, shared: bool) -> FailureRecord:
    failure = Failure(
        goal=record.goal,
        signature=record.signature,
        message=record.message,
        action=record.action,
        language=record.language,
        tool=record.tool,
        fix=record.fix,
        lesson=record.lesson,
        run=record.run,
    )
    made = record_of(failure, _scope_of(record), _moment(record.first_seen))
    return replace(
        made,
        **_tally_of(record, shared=made.shared or shared),
        seen=_count(record.seen),
        last_helped=_moment(record.last_helped),
        retired=record.retired,
    )


def _cleaned_snippet(record: SnippetRecord, *, shared: bool) -> SnippetRecord | None:
    made = snippet_record_of(record.snippet, _scope_of(record), _moment(record.first_seen))
    if made is None:
        return None
    tally = _tally_of(record, shared=made.shared or shared)
    return replace(made, **tally, passed=_count(record.passed), retired=record.retired)


def _scope_of(record: Tally) -> Scope:
    return Scope(project=record.project[:_MAX_NAME], environment=record.environment[:_MAX_NAME])


def _tally_of(record: Tally, *, shared: bool) -> dict[str, Any]:
    return {
        "shared": record.shared or shared,
        "used": _count(record.used),
        "helped": _count(record.helped),
        "harmed": _count(record.harmed),
        "last_seen": _moment(record.last_seen),
    }


def _count(number: int) -> int:
    return min(max(number, 0), _MOST)


def _moment(seconds: float) -> float:
    """Return a past time: a record from the future would never expire."""
    return min(max(seconds, 0.0), time.time()) if math.isfinite(seconds) else 0.0
