"""Goals whose mistakes recur: families of three, each with the usual mistake and what mends it.

Every goal of a family is worded differently and about something else; what they share is the trap.
The controls have no trap. They sound like goals of the families, so that a memory which confuses
them is found out. All of them are in recurring_goals.toml.
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
    """What a lesson must name to be the right one: in neither the goal nor the tests."""

    @property
    def name(self) -> str:
        return f"{self.family}/{self.module.removesuffix('.py')}"


def recurring_goals() -> list[RecurringGoal]:
    """Return the first goal of every family, then all second ones, all third, and the controls."""
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
    # Code is full of braces, so that `format` will not do.
    for name, value in names.items():
        text = text.replace(f"<{name}>", value)
    return text
