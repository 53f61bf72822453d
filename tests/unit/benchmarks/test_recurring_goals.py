"""The goals of the memory benchmark do not give their answers away."""

from collections import Counter

import pytest

from assay.memory.lesson_text import lesson_of
from benchmarks.recurring_goals import RecurringGoal, recurring_goals

every_goal = pytest.mark.parametrize("goal", recurring_goals(), ids=lambda goal: goal.name)


def test_every_family_has_three_goals_and_the_first_of_all_come_first() -> None:
    goals = recurring_goals()
    families = [goal.family for goal in goals]

    assert Counter(families) == {**dict.fromkeys(families[:8], 3), "control": 4}
    assert len(set(families[:8])) == 8


@every_goal
def test_the_cure_stands_in_the_solution_alone(goal: RecurringGoal) -> None:
    assert "<" not in goal.statement + goal.module
    assert (goal.cure in goal.right) is True
    if goal.cure:
        assert goal.cure not in goal.statement + goal.tests + goal.wrong


@every_goal
def test_both_solutions_are_programs_and_differ(goal: RecurringGoal) -> None:
    for source in (goal.right, goal.wrong, goal.tests):
        compile(source, goal.module, "exec")
    assert goal.right != goal.wrong
    assert lesson_of("", "it failed", "+" + goal.right.replace("\n", "\n+"))
