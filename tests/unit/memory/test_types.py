from dataclasses import replace

import pytest

from assay.contracts.lessons import Failure
from assay.memory.types import (
    FailureRecord,
    Scope,
    fingerprint,
    is_transferable,
    judged,
    library_of,
    parts_of,
    record_of,
    seen_again,
)
from tests.conformance.memory.failures import DURATIONS, UNSOLVED

HERE = Scope(project="here")


def a_record(failure: Failure = DURATIONS, now: float = 1.0) -> FailureRecord:
    return record_of(failure, HERE, now)


def test_a_record_has_all_parts_of_its_signature() -> None:
    record = a_record()

    assert record.kind == "NameError"
    assert record.essence == "NameError: name 're' is not defined"
    assert record.frame == "durations.py: parse_duration"
    assert record.lesson.endswith("add `import re` in durations.py")
    assert record.project == "here"
    assert not record.shared


def test_the_same_failure_has_the_same_id_and_another_one_has_not() -> None:
    record = a_record()

    assert a_record(replace(DURATIONS, run="other", message="other", fix="")).id == record.id
    assert a_record(replace(DURATIONS, goal=DURATIONS.goal.upper() + "!")).id == record.id
    for other in (
        replace(DURATIONS, goal="another goal"),
        replace(DURATIONS, signature="ValueError: N"),
        replace(DURATIONS, language="js"),
    ):
        assert a_record(other).id != record.id
    assert record_of(DURATIONS, Scope(project="there"), 1.0).id != record.id


def test_everything_is_cut_to_size() -> None:
    huge = "word " * 100_000
    record = a_record(
        Failure(goal=huge, signature=huge, message=huge, action=huge, fix=huge, lesson=huge)
    )

    assert max(len(str(getattr(record, name))) for name in FailureRecord.__slots__) <= 4000


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("ModuleNotFoundError: No module named 'yaml.nodes'", "yaml"),
        ("AttributeError: module 'numpy' has no attribute 'bool8'", "numpy"),
        ("ImportError: cannot import name 'x' from 'pandas.core' (unknown)", "pandas"),
        ("Error: Cannot find module '@scope/thing'", "@scope/thing"),
        ("ValueError: 3", ""),
    ],
)
def test_the_library_is_the_one_that_the_error_names(text: str, library: str) -> None:
    assert library_of(text) == library


def test_a_signature_without_a_place_is_all_essence() -> None:
    assert parts_of("pytest: exit code N: boom") == ("pytest: exit code N: boom", "")


def test_goals_differ_by_words_not_by_how_they_are_set() -> None:
    assert fingerprint("Write `a.py`!") == fingerprint("write a.py")
    assert fingerprint("Write a.py") != fingerprint("Write b.py")


@pytest.mark.parametrize(
    ("essence", "transferable"),
    [
        ("NameError: name 'x'", True),
        ("AssertionError: assert N", False),
        ("failed: N", False),
        ("", False),
    ],
)
def test_only_errors_about_more_than_a_test_are_for_others(
    essence: str,
    transferable: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert is_transferable(essence) is transferable


def test_a_failure_that_comes_back_solved_brings_its_lesson() -> None:
    known = a_record(UNSOLVED)
    assert known.lesson == ""

    now = seen_again(known, a_record(now=5.0))

    assert now.lesson.endswith("add `import re` in durations.py")
    assert (now.seen, now.first_seen, now.last_seen) == (2, 1.0, 5.0)


def test_a_failure_that_comes_back_unsolved_keeps_its_lesson() -> None:
    known = a_record()

    assert seen_again(known, a_record(UNSOLVED)).lesson == known.lesson


def test_a_proven_lesson_is_not_replaced_and_another_one_is() -> None:
    newer = a_record(replace(DURATIONS, lesson="do something else"))
    proven = replace(a_record(), helped=5)
    doubtful = replace(a_record(), helped=1, harmed=3, used=4)

    assert seen_again(proven, newer).lesson == proven.lesson
    replaced = seen_again(doubtful, newer)
    assert replaced.lesson == "do something else"
    assert (replaced.used, replaced.helped, replaced.harmed) == (0, 0, 0)


def test_a_stale_record_is_revived_by_its_failure() -> None:
    assert seen_again(replace(a_record(), retired="stale"), a_record()).retired == ""


def test_judgements_are_counted_and_too_much_harm_retires() -> None:
    record = judged(a_record(), helped=True, now=9.0)
    assert (record.helped, record.harmed, record.last_helped) == (1, 0, 9.0)

    for _ in range(9):
        record = judged(record, helped=False, now=10.0)

    assert record.harmed == 9
    assert record.last_helped == 9.0
    assert record.retired == "harmful"
