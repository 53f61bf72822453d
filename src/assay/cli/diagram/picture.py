"""The model of a diagram: boxes, and arrows between them."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["part", "step", "end", "outside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One box."""

    id: str
    title: str
    about: str = ""
    """What it is for, in one sentence."""
    kind: Kind = "part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """From one box to another."""

    source: str
    target: str
    label: str = ""
    sometimes: bool = False
    """Taken under a condition, or present only if the settings say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Boxes and arrows; every arrow joins two of the boxes."""

    title: str
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]


def without_shortcuts(arrows: tuple[Arrow, ...]) -> tuple[Arrow, ...]:
    """Return the arrows without those that a longer path implies (transitive reduction)."""
    after: dict[str, set[str]] = {}
    for arrow in arrows:
        after.setdefault(arrow.source, set()).add(arrow.target)
    return tuple(
        arrow
        for arrow in arrows
        if not any(
            _reaches(after, other, arrow.target)
            for other in after[arrow.source]
            if other != arrow.target
        )
    )


def _reaches(after: dict[str, set[str]], start: str, goal: str) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        for following in after.get(waiting.pop(), ()):
            if following == goal:
                return True
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return False
