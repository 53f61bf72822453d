"""What is written as JSON comes back the same."""

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path, PurePosixPath
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.errors import JournalError
from assay.contracts.events import AttemptStarted, RunEvent
from assay.contracts.goal import RunLimits, RunRequest
from assay.contracts.jsonable import jsonable
from assay.storage import codec

# Half of a surrogate pair is in names that are not UTF-8, and in what models write.
AWKWARD = st.sampled_from('\ud83d\udcff\0\n\r\u2028"\\')
TEXT = st.text(st.characters(exclude_categories=()) | AWKWARD, max_size=12)
COUNTS = st.integers(min_value=1, max_value=10**9)
LEAVES: dict[object, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    NoneType: st.none(),
    PurePosixPath: TEXT.map(PurePosixPath),
    Path: TEXT.map(Path),
    RunLimits: st.builds(RunLimits, attempts=COUNTS, repairs=COUNTS, steps=COUNTS, best_of=COUNTS),
}
GOALS = TEXT.filter(lambda text: bool(text.strip()))


@cache
def every(kind: Any) -> st.SearchStrategy[Any]:
    """Whatever a value of this type can be."""
    if kind in LEAVES:
        return LEAVES[kind]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = {name: every(hint) for name, hint in get_type_hints(kind).items()}
        return st.builds(kind, **fields | ({"goal": GOALS} if kind is RunRequest else {}))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    match get_origin(kind), get_args(kind):
        case (origin, options) if origin is Literal:
            return st.sampled_from(options)
        case (origin, options) if origin in {Union, UnionType}:
            return st.one_of([every(option) for option in options])
        case (origin, (of, *_)) if origin is tuple:
            return st.lists(every(of), max_size=3).map(tuple)
        case (_, (key, value)):
            return st.dictionaries(every(key), every(value), max_size=3)
        case _:
            raise AssertionError(f"what is {kind}?")


def through_text(fields: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(fields))


@given(event=every(RunEvent))
def test_an_event_comes_back_as_it_was(event: RunEvent) -> None:
    assert codec.event_from_json(through_text(jsonable(event))) == event


@given(event=every(RunEvent))
def test_an_event_is_one_line_of_text(event: RunEvent) -> None:
    line = codec.line_of({"event": jsonable(event)})

    assert line.count(b"\n") == 1
    assert codec.event_from_json(codec.fields_of(line)["event"]) == event


@given(request=every(RunRequest))
def test_a_request_comes_back_as_it_was(request: RunRequest) -> None:
    assert codec.request_from_json(through_text(jsonable(request))) == request


def test_what_a_later_version_adds_is_left_out() -> None:
    fields = {"kind": "attempt_started", "attempt": 2, "action": "fresh", "mood": "hopeful"}

    assert codec.event_from_json(fields) == AttemptStarted(attempt=2, action="fresh")


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "danced"},
        {"kind": "attempt_started", "attempt": 1},
        {"kind": "attempt_started", "attempt": "many", "action": "fresh"},
        {"kind": "attempt_started", "attempt": 1, "action": "sideways"},
        {},
        [],
        None,
    ],
)
def test_what_is_no_event_is_refused(fields: object) -> None:
    with pytest.raises(JournalError, match="not an event"):
        codec.event_from_json(fields)


def test_a_request_that_checks_itself_is_refused_as_any_other() -> None:
    with pytest.raises(JournalError, match="not a request: the goal is empty"):
        codec.request_from_json({"goal": " "})


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "null", "{}", '{"v": "1"}', '{"v": null}', "[" * 100_000]
)
def test_a_damaged_line_is_refused(line: str) -> None:
    with pytest.raises(JournalError, match="damaged"):
        codec.fields_of(line)


def test_a_line_of_a_later_format_says_what_to_do() -> None:
    with pytest.raises(JournalError, match="format 99") as refusal:
        codec.fields_of('{"v": 99}')

    assert "version" in refusal.value.hint
