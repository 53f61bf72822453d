"""Goals whose mistakes recur: families of three, each with its usual mistake and the fix.

The goals of a family differ in wording and subject, and share a trap. The controls have no trap.
They resemble goals of the families, which reveals a memory that confuses them. All goals are in
recurring_goals.toml.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringGoal:
    family: str
    statement: str
    module: str
    tests: str
    right: str
    wrong: str
    cure: str = ""
    """Text that the right lesson must contain; neither the goal nor the tests contain it."""

    @property
    def name(self) -> str:
        return f"{self.family}/{self.module.removesuffix('.py')}"


def recurring_goals() -> list[RecurringGoal]:
    """Return the first goal of every family, then the second ones, the third, and the controls."""
    written = tomllib.loads(_FILE.read_text())
    by_family = [
        [_goal(family["name"], family, goal) for goal in family["goal"]]
        for family in written["family"]
    ]
    ordered = [goal for goals in zip(*by_family, strict=True) for goal in goals]
    return [*ordered, *(_goal("control", control, control) for control in written["control"])]


def _goal(family: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> RecurringGoal:
    names = {"module": own["module"], "f": own.get("function", "")}
    return RecurringGoal(
        family=family,
        statement=_filled(own["statement"], names),
        module=f"{own['module']}.py",
        tests=_filled(shared["tests"], names),
        right=_filled(shared["right"], names),
        wrong=_filled(shared["wrong"], names),
        cure=shared.get("cure", ""),
    )


def _filled(text: str, names: Mapping[str, str]) -> str:
    # Code contains braces, so `format` does not work.
    for name, value in names.items():
        text = text.replace(f"<{name}>", value)
    return text
