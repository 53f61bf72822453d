"""A run as JSON: the object that `--json` prints and the lines that `--events` writes.

The names are stable between versions; docs/reference/run-json.md lists them.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any, cast

from assay.contracts.events import RunEvent
from assay.contracts.goal import RunResult
from assay.contracts.verdict import TestMatrix


def json_outcome(outcome: RunResult) -> dict[str, Any]:
    """Return what `assay run --json` prints."""
    usage = outcome.usage
    return {
        "run": outcome.run,
        "outcome": outcome.status.value,
        "accepted": outcome.accepted,
        "grade": outcome.grade.value if outcome.grade else None,
        "reason": _text(outcome.reason),
        "attempts": outcome.attempts,
        "lattice": {
            "attempts": [row.attempt for row in outcome.lattice.rows],
            "tests": lattice_fields(outcome.lattice),
        },
        "findings": [_plain(finding) for finding in outcome.findings],
        "changes": [_plain(change) for change in outcome.changes],
        "withheld": [_plain(one) for one in outcome.withheld],
        "cost": {
            "usd": usage.cost_usd,
            "input_tokens": usage.input_tokens,
            "cached_input_tokens": usage.cached_input_tokens,
            "output_tokens": usage.output_tokens,
            "calls": usage.calls,
        },
        "wall_s": round(outcome.wall_s, 3),
        "certificate": outcome.certificate or None,
        "tree": outcome.tree,
    }


def lattice_fields(lattice: TestMatrix) -> dict[str, list[str | None]]:
    """Return, per test id, its result in each attempt; null where it was not reported."""
    return {
        _text(test): [
            status.value if (status := row.statuses.get(test)) else None for row in lattice.rows
        ]
        for test in lattice.tests
    }


def json_event(event: RunEvent) -> dict[str, Any]:
    """Return an event as in a line of `--events`: its kind, then its fields."""
    told = _plain(event)
    return {"kind": told.pop("kind"), **told}


def _plain(value: object) -> Any:
    """Return a value of the contracts as JSON."""
    if isinstance(value, str | PurePath):
        return _text(str(value))
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return {_text(str(key)): _plain(item) for key, item in pairs.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _text(text: str) -> str:
    # Bytes that are not UTF-8 come as lone surrogates, which other JSON readers refuse.
    return text.encode("utf-8", "replace").decode()
