from dataclasses import replace
from itertools import chain
from pathlib import PurePosixPath

import pytest

from assay.agent.state import Attempt, Plan, RunState
from assay.agent.steps.code import hint_of, propose
from assay.agent.strategy import first_step
from assay.contracts.errors import ModelUnavailableError
from assay.contracts.goal import RunLimits, RunSpec
from assay.contracts.workspace import Tree, TreeFile
from tests.doubles.memory_journal import MemoryJournal
from tests.doubles.scripted_model import INFO, ScriptedModel, says
from tests.support.attempts import an_attempt
from tests.support.sittings import a_sitting


def tree_of(source: str) -> Tree:
    return Tree(files={PurePosixPath("test_it.py"): TreeFile(source.encode())})


def failing(*names: str) -> Attempt:
    attempt = an_attempt(1, failed="abcdefgh"[: len(names)])
    (report,) = attempt.reports
    tests = tuple(
        replace(test, id=f"test_it.py::{name}", message=f"{name} is wrong")
        for test, name in zip(report.tests, names, strict=True)
    )
    return replace(attempt, reports=(replace(report, tests=tests),))


def test_a_hint_shows_a_few_of_the_tests_that_fail() -> None:
    names = [f"test_{letter}" for letter in "abcdef"]
    source = "\n".join(f"def {name}():\n    assert {name!r}\n" for name in names)

    hint = hint_of(failing(*names), tree_of(source))

    assert [name for name in names if f"def {name}" in hint] == names[:3]


def test_a_hint_does_not_show_how_tests_fail() -> None:
    hint = hint_of(failing("test_a"), tree_of("def test_a():\n    assert 1 == 2\n"))

    assert "assert 1 == 2" in hint
    assert "is wrong" not in hint


def test_a_test_that_cannot_be_shown_is_told_by_its_message() -> None:
    assert "test_a is wrong" in hint_of(failing("test_a"), tree_of(""))


def test_a_very_long_test_is_cut() -> None:
    lines = "\n".join(f"    assert song({n}) == 'bottles'" for n in range(2000))

    hint = hint_of(failing("test_a"), tree_of(f"def test_a():\n{lines}\n"))

    assert "song(0)" in hint
    assert "song(1999)" in hint
    assert len(hint) < 2000


def test_without_a_failing_test_there_is_no_hint() -> None:
    assert hint_of(an_attempt(1, passed="a"), tree_of("")) == ""


@pytest.mark.parametrize("lost", [1, 2])
async def test_an_attempt_never_gets_the_number_of_one_that_was_begun_before(lost: int) -> None:
    usable = [[says(f"```python\nx = {number}\n```")] for number in (1, 2, 9)]
    # The one that is lost was answered once, and that could not be used.
    gone = [says("I cannot."), ModelUnavailableError("nobody answers")]
    replies = chain.from_iterable([*usable[:lost], gone, *usable[lost:]])
    model = ScriptedModel(replies, info=replace(INFO, tool_calls=False, small=True))
    goal = RunSpec(goal="Write x.py", limits=RunLimits(attempts=3, best_of=3))
    journal = MemoryJournal()
    plan = Plan(targets=(PurePosixPath("x.py"),), pristine=await journal.store_tree(Tree()))
    state = RunState(plan=plan, step=first_step(small=True))

    state = await propose(a_sitting(model, goal, state=state, journal=journal))
    state = replace(state, attempts=state.round, round=())
    state = await propose(a_sitting(model, goal, state=state, journal=journal))

    (again,) = state.round
    assert again.number == 4
    tree = await journal.load_tree(again.tree)
    assert tree.text(PurePosixPath("x.py")) == "x = 9\n"
