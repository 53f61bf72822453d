"""Models that talk nonsense, loop, forge or never stop: the run ends, with an honest report."""

from pathlib import Path
from typing import Any

import pytest

from assay.contracts.events import ToolAnswered
from assay.contracts.goal import RunLimits, Status
from assay.contracts.verdict import TamperKind
from tests.support.undertakings import SMALL, tell

CHECK = ("grep -q 42 answer.txt",)
NATIVE = {"tool_calls": True}
PLAN = "1. write answer.txt"


def calling(name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


@pytest.mark.parametrize(
    ("reply", "facts"),
    [
        ({"text": "I like turtles. They are slow."}, None),
        ({"text": " "}, None),
        ({"text": "EDIT: answer.txt\n<<<<<<< SEARCH\nno end in sight"}, None),
        ({"text": "EDIT: answer.txt\n<<<<<<< SEARCH\nabc\n=======\nd\n>>>>>>> REPLACE"}, None),
        ({"text": "FILE: ../../etc/passwd\n```\nroot\n```"}, None),
        ({"text": "RUN: true"}, None),
        ({"text": "DONE"}, None),
        ({"text": "```python\nprint('unfinished"}, SMALL),
        ({"text": "I cannot do that."}, SMALL),
        (calling("launch_rocket", {"where": "moon"}), NATIVE),
        (calling("write_file", "{not json"), NATIVE),
        (calling("run", {"cmd": 3}), NATIVE),
        (calling("done", {}), NATIVE),
    ],
)
async def test_nonsense_ends_with_an_honest_report(
    tmp_path: Path, reply: dict[str, Any], facts: dict[str, Any] | None
) -> None:
    story = await tell(
        tmp_path,
        [PLAN, {**reply, "repeat": True}],
        facts=facts,
        checks=CHECK,
        limits=RunLimits(attempts=3, steps=5, check_timeout_s=30),
    )

    assert story.outcome.status is Status.NOT_ACCEPTED
    # A larger model repeats itself only once; a small one may give another sample.
    expected = 3 if facts is SMALL else 2
    assert story.outcome.attempts == expected
    assert story.outcome.usage.calls <= 1 + expected * 5
    assert story.outcome.reason
    assert not story.outcome.certificate
    assert not (story.workspace / "answer.txt").exists()


async def test_a_model_that_never_stops_is_stopped(tmp_path: Path) -> None:
    loop = [f"RUN: echo {number}" for number in range(40)]

    story = await tell(
        tmp_path,
        [PLAN, *loop],
        checks=CHECK,
        limits=RunLimits(attempts=2, steps=6, check_timeout_s=30),
    )

    assert story.outcome.status is Status.NOT_ACCEPTED
    assert story.outcome.usage.calls == 1 + 2 * 6


async def test_the_same_words_again_and_again_end_the_attempt(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [PLAN, {"text": "RUN: echo again", "repeat": True}],
        checks=CHECK,
        limits=RunLimits(attempts=1, steps=30, check_timeout_s=30),
    )

    assert len(story.of(ToolAnswered)) == 3


async def test_a_cap_on_tokens_ends_the_run_with_the_best_state(tmp_path: Path) -> None:
    used = {"input_tokens": 400, "output_tokens": 100}
    wrong = {"text": "FILE: answer.txt\n```\n41\n```\nDONE", "usage": used}

    story = await tell(
        tmp_path,
        [{"text": PLAN, "usage": used}, {**wrong, "repeat": True}],
        checks=CHECK,
        budget_tokens=200_000,
        limits=RunLimits(attempts=3, check_timeout_s=30),
    )
    broke = await tell(
        tmp_path / "broke",
        [{"text": PLAN, "usage": used}, {**wrong, "repeat": True}],
        checks=CHECK,
        budget_tokens=1_000,
        limits=RunLimits(attempts=3, check_timeout_s=30),
    )

    assert story.outcome.status is Status.NOT_ACCEPTED
    assert broke.outcome.status is Status.OUT_OF_BUDGET
    assert broke.outcome.usage.calls < story.outcome.usage.calls


async def test_a_cap_on_calls_ends_the_run(tmp_path: Path) -> None:
    wrong = {"text": "FILE: answer.txt\n```\n41\n```\nDONE", "repeat": True}

    story = await tell(
        tmp_path,
        [PLAN, wrong],
        checks=CHECK,
        budget_calls=2,
        limits=RunLimits(attempts=3, check_timeout_s=30),
    )

    assert story.outcome.status is Status.OUT_OF_BUDGET
    assert story.outcome.usage.calls == 2


async def test_time_that_is_up_ends_the_run(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [PLAN, {"text": "RUN: sleep 50"}],
        checks=CHECK,
        limits=RunLimits(attempts=3, wall_s=3, check_timeout_s=30),
    )

    assert story.outcome.status is Status.OUT_OF_BUDGET
    assert "time" in story.outcome.reason


async def test_a_forged_proof_is_named_and_not_accepted(tmp_path: Path) -> None:
    stub = "```python\ndef answer():\n    return 41\n```"
    forgery = "```python\nimport os\nos._exit(0)\n\ndef answer():\n    return 42\n```"

    story = await tell(
        tmp_path,
        [stub, forgery],
        facts=SMALL,
        files={
            "test_it.py": "from it import answer\n\ndef test_it():\n    assert answer() == 42\n"
        },
        tests=("test_it.py",),
        limits=RunLimits(attempts=2, check_timeout_s=60),
    )

    assert story.outcome.status is Status.TAMPERED
    assert TamperKind.EARLY_EXIT in {finding.kind for finding in story.outcome.findings}
    assert not (story.workspace / "it.py").exists()


async def test_tests_that_a_shell_command_rewrote_are_as_they_were_when_judged(
    tmp_path: Path,
) -> None:
    test = "from it import answer\n\ndef test_it():\n    assert answer() == 42\n"
    reply = "RUN: echo 'def test_it(): pass' > test_it.py; echo 'answer = lambda: 1' > it.py"

    story = await tell(
        tmp_path,
        [PLAN, reply, "DONE"],
        files={"test_it.py": test},
        tests=("test_it.py",),
        limits=RunLimits(attempts=1, check_timeout_s=60),
    )

    assert story.outcome.status is Status.TAMPERED
    assert TamperKind.TESTS_CHANGED in {finding.kind for finding in story.outcome.findings}
    assert (story.workspace / "test_it.py").read_text() == test


SCRIPT = "grep -q 42 answer.txt\n"
PACKAGE = '{"scripts": {"pretest": "true", "test": "grep -q 42 answer.txt"}}'


@pytest.mark.parametrize(
    ("check", "file", "content", "forged"),
    [
        ("sh ./check.sh && echo ok", "check.sh", SCRIPT, "exit 0"),
        ("cd sub && sh run.sh", "sub/run.sh", f"cd ..; {SCRIPT}", "exit 0"),
        ("python3 -m tools.run", "tools/run.py", "open('answer.txt')", "pass"),
        ("sh run*.sh", "run.sh", SCRIPT, "exit 0"),
        ("npm test", "package.json", PACKAGE, '{"scripts": {"test": "exit 0"}}'),
    ],
)
async def test_a_check_is_not_rewritten_in_whatever_form_it_is_named(
    tmp_path: Path, check: str, file: str, content: str, forged: str
) -> None:
    story = await tell(
        tmp_path,
        [PLAN, {"text": f"FILE: {file}\n```\n{forged}\n```\nDONE", "repeat": True}],
        files={file: content},
        checks=(check,),
        limits=RunLimits(attempts=1, steps=2, check_timeout_s=30),
    )

    assert story.outcome.status is Status.NOT_ACCEPTED
    assert (story.workspace / file).read_text() == content


async def test_what_a_check_runs_may_be_written_if_the_goal_says_so(tmp_path: Path) -> None:
    story = await tell(
        tmp_path,
        [PLAN, "FILE: main.sh\n```\necho 42\n```\nDONE"],
        files={"main.sh": "echo 41\n"},
        statement="Have main.sh print the answer",
        checks=("sh main.sh | grep -q 42",),
    )

    assert story.outcome.status is Status.ACCEPTED
