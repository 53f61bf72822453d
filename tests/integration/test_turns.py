"""Turns of the tool loop: edits one by one, `done`, `blocked`, and attempts without progress."""

from pathlib import Path
from typing import Any

import pytest

from assay.contracts.events import AttemptStarted, ModelReplied, Reflected, ToolAnswered
from assay.contracts.goal import RunLimits, Status
from tests.support.undertakings import TEXT_ONLY, tell

NATIVE = {"tool_calls": True}
CHECK = ("grep -q 42 answer.txt",)
LIMITS = RunLimits(attempts=4, steps=6, check_timeout_s=30)


def calls(*each: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": given} for name, given in each]}


def write(path: str, text: str) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "text": text}


def edit(path: str, search: str, replace: str) -> tuple[str, dict[str, Any]]:
    return "edit_file", {"path": path, "search": search, "replace": replace}


DONE: tuple[str, dict[str, Any]] = ("done", {})
PLAN = "1. write answer.txt"


async def test_edits_are_applied_one_by_one_and_done_waits_for_the_failed_one(
    tmp_path: Path,
) -> None:
    story = await tell(
        tmp_path,
        [
            PLAN,
            calls(
                edit("one.txt", "a\n", "b\n"),
                edit("other.txt", "nowhere", "42"),
                write("two.txt", "new\n"),
                DONE,
            ),
            calls(write("answer.txt", "42\n"), DONE),
        ],
        facts=NATIVE,
        files={"one.txt": "a\n", "other.txt": "41\n"},
        checks=CHECK,
        limits=LIMITS,
    )

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.attempts == 1
    assert [(one.summary, one.failed) for one in story.of(ToolAnswered)] == [
        ("one.txt", False),
        ("other.txt", True),
        ("two.txt", False),
        ("answer.txt", False),
    ]
    assert "SEARCH text is not in the file" in story.of(ToolAnswered)[1].answer
    assert (story.workspace / "one.txt").read_text() == "b\n"
    assert (story.workspace / "two.txt").read_text() == "new\n"


async def test_the_plain_text_protocol_applies_edits_one_by_one_too(tmp_path: Path) -> None:
    wrong = "EDIT: other.txt\n<<<<<<< SEARCH\nnowhere\n=======\n42\n>>>>>>> REPLACE\n"

    story = await tell(
        tmp_path,
        [
            PLAN,
            f"FILE: one.txt\n```\nb\n```\n{wrong}\nDONE",
            "FILE: answer.txt\n```\n42\n```\nDONE",
        ],
        facts=TEXT_ONLY,
        files={"other.txt": "41\n"},
        checks=CHECK,
        limits=LIMITS,
    )

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.attempts == 1
    assert (story.workspace / "one.txt").read_text() == "b\n"


@pytest.mark.parametrize(
    ("look", "blocked", "facts"),
    [
        (
            calls(("run", {"command": "ls"})),
            calls(("blocked", {"reason": "the package frobnicate"})),
            NATIVE,
        ),
        ({"text": "RUN: ls"}, {"text": "BLOCKED: the package frobnicate"}, TEXT_ONLY),
    ],
)
async def test_a_blocked_model_ends_the_run_with_its_reason(
    tmp_path: Path, look: dict[str, Any], blocked: dict[str, Any], facts: dict[str, Any]
) -> None:
    story = await tell(tmp_path, [PLAN, look, blocked], facts=facts, checks=CHECK, limits=LIMITS)

    assert story.outcome.status is Status.NOT_ACCEPTED
    assert story.outcome.reason == "the model is blocked: the package frobnicate"
    assert story.outcome.usage.calls == 3
    assert story.outcome.attempts == 1
    assert story.of(ToolAnswered)[-1].tool == "blocked"


async def test_a_model_that_is_blocked_before_it_looked_is_asked_once(tmp_path: Path) -> None:
    blocked = calls(("blocked", {"reason": "everything"}))

    story = await tell(
        tmp_path, [PLAN, blocked, blocked], facts=NATIVE, checks=CHECK, limits=LIMITS
    )

    assert story.outcome.reason == "the model is blocked: everything"
    assert [one.failed for one in story.of(ToolAnswered)] == [True, False]


async def test_what_a_blocked_model_has_changed_is_still_checked(tmp_path: Path) -> None:
    last = calls(write("answer.txt", "42\n"), ("run", {"command": "ls"}))
    blocked = calls(("blocked", {"reason": "I cannot run the check"}))

    story = await tell(tmp_path, [PLAN, last, blocked], facts=NATIVE, checks=CHECK, limits=LIMITS)

    assert story.outcome.status is Status.ACCEPTED


async def test_two_attempts_that_change_nothing_end_the_run(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [PLAN, {**calls(DONE), "repeat": True}],
        facts=NATIVE,
        files={"other.txt": "41\n"},
        checks=CHECK,
        limits=LIMITS,
    )

    assert story.outcome.status is Status.NOT_ACCEPTED
    assert story.outcome.attempts == 2
    assert story.outcome.reason.endswith("; two attempts in a row changed no file")
    assert story.of(Reflected)[0].lesson.startswith("it changed no file")
    assert [event.action for event in story.of(AttemptStarted)] == ["sample", "repair"]


async def test_two_attempts_with_the_same_wrong_files_end_the_run(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [PLAN, {**calls(write("answer.txt", "41\n"), DONE), "repeat": True}],
        facts=NATIVE,
        checks=CHECK,
        limits=LIMITS,
    )

    assert story.outcome.attempts == 2
    assert story.outcome.reason.endswith("; two attempts in a row gave the same files")
    assert len(story.of(ModelReplied)) == 3


def cut(text: str = "", tokens: int = 900, **more: Any) -> dict[str, Any]:
    return {
        "text": text,
        "stop_reason": "length",
        "usage": {"output_tokens": tokens},
        **more,
    }


TIGHT = {**NATIVE, "context_tokens": 40_000, "max_output_tokens": 30_000}


async def test_a_cut_reply_is_repeated_once_with_more_room_and_costs_no_attempt(
    tmp_path: Path,
) -> None:
    broken: dict[str, Any] = {
        "tool_calls": [{"name": "write_file", "arguments": '{"path": "answer.txt", "te'}]
    }

    story = await tell(
        tmp_path,
        [
            PLAN,
            cut(),
            calls(write("answer.txt", "41\n")),
            cut(**broken),
            calls(write("answer.txt", "42\n"), DONE),
        ],
        facts=TIGHT,
        checks=CHECK,
        limits=LIMITS,
    )

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.attempts == 1
    assert [one.cut_off for one in story.of(ModelReplied)] == [False, True, False, True, False]


async def test_a_reply_that_is_cut_at_the_models_own_limit_is_called_that(tmp_path: Path) -> None:
    known = {**NATIVE, "context_tokens": 100_000, "max_output_tokens": 4_000}
    broken: dict[str, Any] = {
        "tool_calls": [{"name": "write_file", "arguments": '{"path": "answer.txt", "te'}]
    }

    story = await tell(
        tmp_path,
        [PLAN, cut(**broken), calls(write("answer.txt", "42\n"), DONE)],
        facts=known,
        checks=CHECK,
        limits=LIMITS,
    )

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.usage.calls == 3


async def test_a_model_whose_replies_are_always_cut_ends_the_run(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [PLAN, cut(tokens=8_000, repeat=True)],
        facts=TIGHT,
        checks=CHECK,
        limits=LIMITS,
    )

    assert story.outcome.attempts == 1
    assert story.outcome.usage.calls == 1 + 2 * 2
    assert story.outcome.reason.endswith("; the model's replies were cut off after 8,000 tokens")


async def test_cut_replies_without_a_test_are_named_as_that(tmp_path: Path) -> None:
    story = await tell(tmp_path, [cut(repeat=True)], facts=NATIVE, limits=LIMITS)

    assert story.outcome.reason.endswith("; the model's replies were cut off after 900 tokens")


async def test_an_empty_judgement_is_no_judgement(tmp_path: Path) -> None:
    program = "FILE: answer.py\n```python\nprint(42)\n```\nDONE"
    story = await tell(
        tmp_path,
        ["No test.", "No test.", "No test.", PLAN, program, {"stop_reason": "ended"}, "YES, 42."],
        facts=TEXT_ONLY,
        statement="Write answer.py that prints 42",
        limits=LIMITS,
    )

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.reason == "it ran, and the model judged: YES, 42."
