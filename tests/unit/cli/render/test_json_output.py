import json
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given

from assay.cli.render.view import json_event, json_outcome
from assay.contracts.events import ActionKind, RunEvent
from assay.contracts.goal import RunResult, Status
from tests.support.runs import (
    CHECK,
    RUN,
    TESTS,
    TREE,
    a_finding,
    a_lattice,
    a_run_of_events,
    an_outcome,
    hostile_events,
)
from tests.support.sources import ROOT

REFERENCE: Path = ROOT / "docs" / "reference" / "run-json.md"


def test_an_outcome_is_one_object_with_promised_names() -> None:
    outcome = an_outcome(findings=(a_finding(),), test_matrix=a_lattice("pf", "pp"))

    assert json.loads(json.dumps(json_outcome(outcome))) == {
        "run": RUN,
        "outcome": "accepted",
        "accepted": True,
        "grade": "proven",
        "reason": "all 8 tests pass",
        "attempts": 4,
        "test_matrix": {
            "attempts": [1, 2],
            "tests": {TESTS[0]: ["passed", "passed"], TESTS[1]: ["failed", "passed"]},
        },
        "findings": [
            {
                "kind": "early_exit",
                "severity": "forgery",
                "explanation": "os._exit(0) ends the process before the tests report",
                "path": "slugify.py",
                "line": 4,
            }
        ],
        "changes": [
            {"path": "slugify.py", "kind": "modified"},
            {"path": "README.md", "kind": "added"},
        ],
        "withheld": [],
        "cost": {
            "usd": 0.0124,
            "input_tokens": 12400,
            "cached_input_tokens": 4000,
            "cache_write_tokens": 0,
            "output_tokens": 1640,
            "reasoning_tokens": 0,
            "saved_usd": 0.0,
            "calls": 4,
        },
        "wall_s": 83.4,
        "certificate": "/home/me/project/assay-certificate.json",
        "commit": None,
        "tree": TREE,
    }


@pytest.mark.parametrize("status", list(Status))
def test_only_an_acceptance_has_a_grade_and_a_certificate(status: Status) -> None:
    told = json_outcome(an_outcome(status))

    accepted = status is Status.ACCEPTED
    assert told["outcome"] == status.value
    assert told["accepted"] is accepted
    assert (told["grade"] is not None, told["certificate"] is not None) == (accepted, accepted)


def test_a_test_that_was_not_reported_is_null_in_that_attempt() -> None:
    told = json_outcome(an_outcome(test_matrix=a_lattice("p", "ps")))

    assert told["test_matrix"]["tests"][TESTS[1]] == [None, "skipped"]


def test_an_event_is_its_kind_and_its_fields() -> None:
    planned = next(event for event in a_run_of_events() if event.kind == "planned")

    assert json.loads(json.dumps(json_event(planned))) == {
        "kind": "planned",
        "steps": ["Read the tests.", "Fold accents, then replace.", "Say so in the README."],
        "targets": ["slugify.py", "README.md"],
        "checks": [CHECK],
        "lessons": ["str.encode('ascii') raises on accents: pass 'ignore'"],
        "snippets": ["fold_accents"],
        "baseline": "",
        "instructions": "",
    }


@given(hostile_events())
def test_every_event_is_a_line_that_others_can_read(event: RunEvent) -> None:
    line = json.dumps(json_event(event), allow_nan=False)

    assert "\n" not in line
    assert json.loads(line)["kind"] == event.kind
    json.loads(line.encode()), json.dumps(json.loads(line), ensure_ascii=False).encode()


def test_the_reference_names_every_event_and_every_field() -> None:
    text = REFERENCE.read_text()
    sections = {part.partition("`")[0]: part for part in text.split("\n### `")[1:]}

    for event in get_args(RunEvent):
        (kind,) = get_args(event.__annotations__["kind"])
        section = sections[kind]
        missing = [one.name for one in fields(event) if f"`{one.name}`" not in section]
        assert missing in ([], ["kind"]), kind


def test_the_reference_names_every_move() -> None:
    text = REFERENCE.read_text()

    assert [move for move in get_args(ActionKind) if f"| `{move}` |" not in text] == []


def test_the_reference_names_every_field_of_an_outcome() -> None:
    text = REFERENCE.read_text()
    told = json_outcome(an_outcome())

    names = [*told, *told["cost"], *told["test_matrix"], *told["changes"][0]]
    assert [name for name in names if f"`{name}`" not in text] == []
    callers_only = {"diff", "folder", "local"}
    assert {one.name for one in fields(RunResult)} - set(told) - callers_only == {
        *("status", "verdict", "usage")
    }
