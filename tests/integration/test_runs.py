"""Whole runs: from a goal to files that were judged, in real sandboxes, with a scripted model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.events import (
    AttemptStarted,
    ChecksWritten,
    Executed,
    Planned,
    RolledBack,
    RunEnded,
    RunEvent,
    RunStarted,
    Screened,
    ToolAnswered,
)
from assay.contracts.goal import RunLimits, Status
from assay.contracts.verdict import Grade
from assay.storage.certificates import read_certificate
from tests.support.undertakings import SMALL, tell

TEST = """\
from calc import add, sub


def test_add():
    assert add(1, 2) == 3


def test_add_more():
    assert add(5, 5) == 10


def test_sub():
    assert sub(5, 3) == 2
"""
RIGHT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"
HALF = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a + b\n"
WORSE = "def add(a, b):\n    return 0\n\n\ndef sub(a, b):\n    return 0\n"
FILES = {"test_calc.py": TEST}
TESTS = ("test_calc.py",)
ONE_MINUTE = RunLimits(attempts=4, check_timeout_s=60)


def fenced(source: str) -> str:
    return f"```python\n{source}```"


def filed(source: str) -> str:
    return f"FILE: calc.py\n{fenced(source)}\nDONE"


async def test_a_small_model_is_sampled_until_a_sample_is_proven(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [fenced(WORSE), fenced(HALF), fenced(RIGHT)],
        facts=SMALL,
        files=FILES,
        tests=TESTS,
        limits=ONE_MINUTE,
    )

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.grade is Grade.PROVEN
    assert story.outcome.attempts == 3
    assert (story.workspace / "calc.py").read_text() == RIGHT
    certificate = read_certificate(Path(story.outcome.certificate))
    assert certificate.grade is Grade.PROVEN
    assert {test.id for test in certificate.tests} == {
        "test_calc.py::test_add",
        "test_calc.py::test_add_more",
        "test_calc.py::test_sub",
    }
    assert certificate.canaries.planted == certificate.canaries.caught > 0


async def test_secrets_reach_neither_prompt_nor_sandbox_and_stay_as_they_are(
    tmp_path: Path,
) -> None:
    secret = "the-content-of-a-secret"  # noqa: S105 - only looked for
    hidden = {".env": f"KEY={secret}\n", "data.json": f'["{secret}"]'}
    script = f"FILE: .env\n```\nKEY=other\n```\n{filed(RIGHT)}"

    story = await tell(
        tmp_path,
        ["1. write calc.py", script, filed(RIGHT)],
        files={**FILES, **hidden, ".gitignore": "data.json\n"},
        tests=TESTS,
        checks=("pytest -q test_calc.py", "test ! -e .env -a ! -e data.json"),
        limits=ONE_MINUTE,
    )

    assert story.outcome.status is Status.ACCEPTED, story.outcome.reason
    assert {name: (story.workspace / name).read_text() for name in hidden} == hidden
    told = [str(one) for one in story.outcome.withheld]
    assert told == [str(one) for one in story.of(RunStarted)[0].withheld] == [".env", "data.json"]
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not [path for path in kept if secret.encode() in path.read_bytes()]


async def test_a_strong_model_is_told_what_fails_and_repairs_it(tmp_path: Path) -> None:
    old, new = "def sub(a, b):\n    return a + b\n", "def sub(a, b):\n    return a - b\n"
    repair = f"EDIT: calc.py\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\nDONE"

    story = await tell(
        tmp_path,
        ["1. write calc.py", filed(HALF), repair],
        files=FILES,
        tests=TESTS,
        limits=ONE_MINUTE,
    )

    assert story.outcome.grade is Grade.PROVEN
    assert [event.action for event in story.of(AttemptStarted)] == ["sample", "repair"]
    assert [len(row.passed) for row in story.outcome.test_matrix.rows] == [2, 3]


async def test_a_model_with_native_calls_looks_writes_runs_and_is_done(tmp_path: Path) -> None:
    def calling(name: str, **arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"name": name, "arguments": arguments}]}

    story = await tell(
        tmp_path,
        [
            "1. write calc.py",
            calling("read_file", path="test_calc.py"),
            calling("write_file", path="calc.py", text=HALF),
            calling(
                "edit_file",
                path="calc.py",
                search="sub(a, b):\n    return a + b",
                replace="sub(a, b):\n    return a - b",
            ),
            calling("run", command="python3 -c 'import calc; print(calc.sub(5, 3))'"),
            calling("done"),
        ],
        facts={"tool_calls": True},
        files=FILES,
        tests=TESTS,
        limits=ONE_MINUTE,
    )

    answers = [(event.tool, event.failed) for event in story.of(ToolAnswered)]
    assert answers == [("read_file", False), ("edit", False), ("edit", False), ("run", False)]
    assert "2" in story.of(ToolAnswered)[-1].answer
    assert story.outcome.grade is Grade.PROVEN
    assert story.outcome.attempts == 1


async def test_an_attempt_that_loses_tests_is_rolled_back(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        ["1. write calc.py", filed(HALF), filed(WORSE), "DONE", filed(RIGHT)],
        files=FILES,
        tests=TESTS,
        limits=ONE_MINUTE,
    )

    rolled = story.of(RolledBack)
    assert [(event.attempt, event.to_attempt) for event in rolled] == [(2, 1)]
    assert rolled[0].broke == ("test_calc.py::test_add", "test_calc.py::test_add_more")
    assert story.outcome.grade is Grade.PROVEN


async def test_several_proposals_side_by_side_and_the_best_is_kept(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [fenced(WORSE), fenced(RIGHT), fenced(HALF)],
        facts=SMALL,
        files=FILES,
        tests=TESTS,
        limits=RunLimits(attempts=3, best_of=3, check_timeout_s=60),
    )

    assert story.outcome.grade is Grade.PROVEN
    assert len(story.of(Executed)) == 3
    assert (story.workspace / "calc.py").read_text() == RIGHT


@pytest.mark.slow
async def test_two_samples_that_complement_each_other_are_put_together(tmp_path: Path) -> None:
    other_half = "def add(a, b):\n    return 3\n\n\ndef sub(a, b):\n    return a - b\n"

    story = await tell(
        tmp_path,
        [fenced(HALF), fenced(other_half)],
        facts=SMALL,
        files=FILES,
        tests=TESTS,
        limits=ONE_MINUTE,
    )

    assert [event.action for event in story.of(AttemptStarted)] == ["sample", "sample", "combine"]
    assert story.outcome.grade is Grade.PROVEN
    assert story.outcome.usage.calls == 2


async def test_a_small_model_repairs_one_function_of_its_best_attempt(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [fenced(HALF), fenced(WORSE), fenced("def sub(a, b):\n    return a - b\n")],
        facts=SMALL,
        files=FILES,
        tests=TESTS,
        limits=ONE_MINUTE,
    )

    assert [event.action for event in story.of(AttemptStarted)] == ["sample", "sample", "repair"]
    assert story.outcome.grade is Grade.PROVEN
    assert (story.workspace / "calc.py").read_text() == RIGHT


async def test_the_untouched_workspace_stays_so_without_acceptance(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [fenced(HALF)],
        facts=SMALL,
        files=FILES,
        tests=TESTS,
        limits=RunLimits(attempts=1, check_timeout_s=60),
    )

    assert story.outcome.status is Status.NOT_ACCEPTED
    assert "2 of 3 tests" in story.outcome.reason
    assert sorted(path.name for path in story.workspace.iterdir()) == ["test_calc.py"]


async def test_without_tests_checks_are_written_that_fail_first(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [fenced(TEST), fenced(RIGHT)],
        facts=SMALL,
        statement="Write calc.py with add(a, b) and sub(a, b)",
        limits=ONE_MINUTE,
    )

    assert len(story.of(ChecksWritten)) == 1
    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.grade is Grade.CHECKED
    assert (story.workspace / "test_goal.py").exists()
    assert (story.workspace / "calc.py").read_text() == RIGHT


async def test_checks_that_pass_already_are_not_taken(tmp_path: Path) -> None:
    empty = "def test_nothing():\n    assert True\n"

    story = await tell(
        tmp_path,
        [fenced(empty), fenced(empty), fenced(TEST), fenced(RIGHT)],
        facts=SMALL,
        statement="Write calc.py with add(a, b) and sub(a, b)",
        limits=ONE_MINUTE,
    )

    assert story.outcome.grade is Grade.CHECKED
    assert "test_nothing" not in (story.workspace / "test_goal.py").read_text()


async def test_without_any_check_the_output_is_judged_and_the_grade_says_so(
    tmp_path: Path,
) -> None:
    story = await tell(
        tmp_path,
        ["no", "no", "no", "```python\nprint(6 * 7)\n```", "YES, it prints 42"],
        facts=SMALL,
        statement="Write answer.py which prints the answer",
        limits=ONE_MINUTE,
    )

    assert story.outcome.status is Status.ACCEPTED
    assert story.outcome.grade is Grade.RAN


async def test_the_workspaces_own_failing_tests_decide_unasked(tmp_path: Path) -> None:
    story = await tell(tmp_path, [fenced(RIGHT)], facts=SMALL, files=FILES, limits=ONE_MINUTE)

    assert story.of(Planned)[0].checks == ("pytest test_calc.py",)
    assert story.outcome.grade is Grade.PROVEN


async def test_a_plain_command_is_worth_no_more_than_checked(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        ["1. write it", "FILE: answer.txt\n```\n42\n```\nDONE"],
        checks=("grep -q 42 answer.txt",),
        limits=ONE_MINUTE,
    )

    assert story.outcome.grade is Grade.CHECKED


async def test_a_policy_that_blocks_keeps_code_from_running(tmp_path: Path) -> None:
    evil = "import ctypes\n\n\ndef add(a, b):\n    return a + b\n"

    story = await tell(
        tmp_path,
        [fenced(evil), fenced(RIGHT)],
        facts=SMALL,
        files=FILES,
        tests=TESTS,
        limits=ONE_MINUTE,
        screening="block",
    )

    assert [event.blocked for event in story.of(Screened)] == [True, False]
    assert story.of(Executed)[0].reports == ()
    assert story.outcome.grade is Grade.PROVEN


async def test_only_what_is_allowed_is_handed_over(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        ["1. write calc.py", "RUN: echo x > stray.txt", filed(RIGHT)],
        files=FILES,
        tests=TESTS,
        allowed=("calc.py",),
        limits=ONE_MINUTE,
    )

    assert story.outcome.grade is Grade.PROVEN
    assert not (story.workspace / "stray.txt").exists()


async def test_what_tools_leave_behind_is_neither_lost_nor_handed_over(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [
            "1. write calc.py",
            "RUN: mkdir -p target; echo y > target/new.txt; ls target",
            filed(RIGHT),
        ],
        files={**FILES, "pom.xml": "<project/>\n", "target/mine.txt": "x\n"},
        tests=TESTS,
        limits=ONE_MINUTE,
    )

    assert story.outcome.grade is Grade.PROVEN
    assert [path.name for path in (story.workspace / "target").iterdir()] == ["mine.txt"]


async def test_the_events_begin_and_end_with_the_run(tmp_path: Path) -> None:
    story = await tell(
        tmp_path, [fenced(RIGHT)], facts=SMALL, files=FILES, tests=TESTS, limits=ONE_MINUTE
    )

    assert isinstance(story.events[0], RunStarted)
    assert isinstance(story.events[-1], RunEnded)
    ended = replace(story.outcome, diff="", folder="", local=False)
    assert story.events[-1].outcome == ended


async def test_a_missing_test_is_said_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no test 'test_x\.py'"):
        await tell(tmp_path, ["x"], files=FILES, tests=("test_x.py",))
    assert not (tmp_path / "state" / "runs").exists()


@pytest.mark.slow
async def test_a_file_that_the_person_changed_meanwhile_is_not_overwritten(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "calc.py").write_text("# mine\n")

    def meddle(event: RunEvent) -> None:
        if isinstance(event, Executed):
            (workspace / "calc.py").write_text("# mine, and better\n")

    with pytest.raises(UsageError, match=r"calc\.py"):
        await tell(
            tmp_path,
            [fenced(RIGHT)],
            facts=SMALL,
            files=FILES,
            tests=TESTS,
            limits=ONE_MINUTE,
            listener=meddle,
        )
    assert (workspace / "calc.py").read_text() == "# mine, and better\n"
