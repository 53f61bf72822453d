"""Turns of the tool loop: edits one by one, `done`, `blocked`, and attempts without progress."""

import base64
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.events import AttemptStarted, ModelReplied, Planned, Reflected, ToolAnswered
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
    assert "; the model's replies were cut off after 8,000 tokens; " in story.outcome.reason
    assert "max_output_tokens" in story.outcome.reason


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


TWO_TESTS = """\
import calc


def test_add():
    assert calc.add(1, 2) == 3


def test_sub():
    assert calc.sub(3, 2) == 1
"""
HALF = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a + b\n"


async def test_the_check_tool_runs_what_decides_whole_or_for_named_tests(tmp_path: Path) -> None:
    check = calls(
        write("src/calc.py", HALF),
        ("check", {}),
        ("check", {"tests": ["tests/test_calc.py::test_add"]}),
        ("check", {"tests": ["nothing"]}),
    )
    fixed = calls(
        edit("src/calc.py", "sub(a, b):\n    return a + b", "sub(a, b):\n    return a - b"),
        ("check", {}),
        DONE,
    )

    story = await tell(
        tmp_path,
        [PLAN, check, fixed],
        facts=NATIVE,
        files={"tests/test_calc.py": TWO_TESTS},
        checks=("pytest -q tests",),
        limits=LIMITS,
    )

    answers = [one for one in story.of(ToolAnswered) if one.tool == "check"]
    assert "1 of 2 tests failed" in answers[0].answer
    assert "test_sub" in answers[0].answer
    assert "all 1 tests passed" in answers[1].answer
    assert "tests/test_calc.py::test_add" in answers[1].answer
    assert answers[2].failed
    assert "no test is named nothing" in answers[2].answer
    assert "all 2 tests passed" in answers[3].answer
    assert story.outcome.status is Status.ACCEPTED


async def test_the_check_tool_ignores_changes_to_tests(tmp_path: Path) -> None:
    forged = "def test_add():\n    pass\n"
    story = await tell(
        tmp_path,
        [
            PLAN,
            calls(
                ("run", {"command": f"printf '{forged}' > tests/test_calc.py"}),
                write("calc.py", HALF),
                ("check", {}),
            ),
            calls(("blocked", {"reason": "that was wrong"})),
        ],
        facts=NATIVE,
        files={"tests/test_calc.py": TWO_TESTS},
        checks=("pytest -q tests",),
        limits=LIMITS,
    )

    answer = next(one.answer for one in story.of(ToolAnswered) if one.tool == "check")
    assert "1 of 2 tests failed" in answer
    assert "Not counted: " in answer


async def test_a_patch_changes_several_files_or_none(tmp_path: Path) -> None:
    first = "--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-a\n+b\n"
    bad = f"{first}--- a/two.txt\n+++ b/two.txt\n@@ -1 +1 @@\n-x\n+y\n"
    good = bad.replace("-x\n", "-c\n").replace("+y\n", "+d\n")
    story = await tell(
        tmp_path,
        [
            PLAN,
            calls(("apply_patch", {"patch": bad}), ("git_diff", {})),
            calls(
                ("apply_patch", {"patch": good}),
                write("answer.txt", "42\n"),
                ("git_diff", {"path": "two.txt"}),
                DONE,
            ),
        ],
        facts=NATIVE,
        files={"one.txt": "a\n", "two.txt": "c\n"},
        checks=CHECK,
        limits=LIMITS,
    )

    answers = story.of(ToolAnswered)
    assert answers[0].failed
    assert "1 of 2 edits cannot be applied, so nothing was changed" in answers[0].answer
    assert answers[1].answer == "Nothing was changed."
    assert "--- a/two.txt" in answers[4].answer
    assert "one.txt" not in answers[4].answer
    assert (story.workspace / "one.txt").read_text() == "b\n"
    assert (story.workspace / "two.txt").read_text() == "d\n"


async def test_a_model_with_tools_states_its_plan_in_its_first_reply(tmp_path: Path) -> None:
    work = {**calls(write("answer.txt", "42\n"), DONE), "text": "1. write answer.txt\n2. check it"}

    story = await tell(tmp_path, [work], facts=NATIVE, checks=CHECK, limits=LIMITS)

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.usage.calls == 1
    assert [event.steps for event in story.of(Planned)] == [(), ("write answer.txt", "check it")]


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize("sees", [True, False])
async def test_only_a_model_that_sees_images_can_view_one(tmp_path: Path, *, sees: bool) -> None:
    draw = f"import base64; open('a.png', 'wb').write({PIXEL!r})"
    story = await tell(
        tmp_path,
        [
            PLAN,
            calls(("python", {"code": draw}), ("view_image", {"path": "a.png"})),
            calls(write("answer.txt", "42\n"), ("run", {"command": "rm a.png"}), DONE),
        ],
        facts={**NATIVE, "sees_pictures": sees},
        checks=CHECK,
        limits=LIMITS,
    )

    answers = [one for one in story.of(ToolAnswered) if one.tool == "view_image"]
    assert [one.failed for one in answers] == ([False] if sees else [])
    assert story.outcome.status is Status.ACCEPTED
