from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from assay.contracts.lessons import RecallQuery, Snippet
from assay.memory.snippets import (
    SnippetRecord,
    choose_snippets,
    judged_snippet,
    kept_again,
    retested,
    snippet_record_of,
)
from assay.memory.types import Scope
from tests.conformance.memory.failures import SNIPPET

NOW = 1_700_000_000.0


def a_record(snippet: Snippet = SNIPPET, place: Scope | None = None) -> SnippetRecord:
    record = snippet_record_of(snippet, place or Scope(), NOW)
    assert record is not None
    return record


def a_query(goal: str, text: str = "") -> RecallQuery:
    return RecallQuery(moment="plan", goal=goal, text=text)


def test_a_helper_comes_back_as_it_was_kept() -> None:
    record = a_record()

    assert replace(record.snippet, id="") == SNIPPET
    assert record.shared
    assert not a_record(place=Scope(project="shop")).shared


@pytest.mark.parametrize(
    "snippet",
    [
        replace(SNIPPET, names=()),
        replace(SNIPPET, source="x = 1\n" * 5_000),
        replace(SNIPPET, source="api_key = 'abcdef123456'\n"),
        replace(SNIPPET, test="token = 'abcdef123456'\n"),
        replace(SNIPPET, path=PurePosixPath("../words.py")),
        replace(SNIPPET, test_path=PurePosixPath("/home/test_words.py")),
        replace(SNIPPET, source="x = '\ud800'\n"),
    ],
)
def test_what_may_not_be_kept_is_not(snippet: Snippet) -> None:
    assert snippet_record_of(snippet, Scope(), NOW) is None


def test_a_secret_in_the_goal_is_hidden() -> None:
    record = a_record(replace(SNIPPET, purpose="use the key sk-abcdefghijklmnopqrstuvwx for it"))

    assert "sk-abc" not in record.purpose


def test_helpers_are_found_by_goal_and_by_name_and_strangers_are_not() -> None:
    known = [a_record()]

    assert choose_snippets(a_query("Write urls.py: make a slug of a title for its address"), known)
    assert choose_snippets(a_query("Do what the tests want", "slug title"), known)
    assert not choose_snippets(a_query("Write a parser for dates in log files"), known)


def test_few_are_offered_the_proven_ones_first_and_no_name_twice() -> None:
    goal = SNIPPET.purpose
    proven = replace(a_record(), id="proven", helped=5)
    same = replace(a_record(), id="same")
    others = [replace(a_record(), id=str(n), names=(f"slug_{n}",)) for n in range(4)]

    chosen = choose_snippets(a_query(goal), [*others, same, proven])

    assert chosen[0].id == "proven"
    assert len(chosen) == 2
    assert len({one.names for one in chosen}) == 2


def test_a_helper_is_seen_by_its_project_and_environment_until_it_retires() -> None:
    mine = a_record(place=Scope(project="shop", environment="3.11"))

    assert mine.visible_in(Scope(project="shop", environment="3.11"))
    assert not mine.visible_in(Scope(project="other", environment="3.11"))
    assert not mine.visible_in(Scope(project="shop", environment="3.12"))
    assert not retested(mine, passed=False, now=NOW).visible_in(mine_place := Scope(project="shop"))
    assert mine.visible_in(mine_place)


def test_one_that_rotted_comes_back_when_it_is_proven_again_and_a_harmful_one_does_not() -> None:
    rotten = retested(a_record(), passed=False, now=NOW)
    harmful = a_record()
    for _ in range(4):
        harmful = judged_snippet(harmful, helped=False)

    assert rotten.retired == "rotten"
    assert kept_again(rotten, a_record()).retired == ""
    assert harmful.retired == "harmful"
    assert kept_again(harmful, a_record()).retired == "harmful"


def test_help_is_counted_and_passing_tests_are_too() -> None:
    record = retested(judged_snippet(a_record(), helped=True), passed=True, now=NOW + 5)

    assert (record.helped, record.harmed, record.passed, record.used) == (1, 0, 2, 1)
    assert record.last_seen == NOW + 5
