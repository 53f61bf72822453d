"""The model of a diagram: boxes and arrows, and their layered layout.

In the layout, arrows point down, with few crossings.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import fmean
from typing import Final, Literal

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
    """Return the arrows without those that a longer path implies (transitive reduction).

    Raises:
        graphlib.CycleError: If the arrows have a cycle.
    """
    after: dict[str, set[str]] = {}
    for arrow in arrows:
        after.setdefault(arrow.source, set()).add(arrow.target)
    below: dict[str, set[str]] = {}
    for name in TopologicalSorter(after).static_order():
        targets = after.get(name, set())
        below[name] = targets.union(*(below[target] for target in targets))
    return tuple(
        arrow
        for arrow in arrows
        if not any(arrow.target in below[other] for other in after[arrow.source])
    )


_SWEEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A picture in rows."""

    rows: tuple[tuple[str, ...], ...]
    """Boxes and waypoints, from left to right."""
    ways: tuple[tuple[Arrow, tuple[str, ...]], ...]
    """Each arrow that points down, with its boxes and waypoints."""
    back: tuple[Arrow, ...]
    """Arrows that point back up."""

    @property
    def is_chain(self) -> bool:
        """Whether there is never more than one box beside another."""
        return all(len(row) == 1 for row in self.rows)


def layered(picture: Picture) -> Layers:
    """Put every box below those that point at it."""
    back = _returning(picture)
    down = [arrow for arrow in picture.arrows if arrow not in back]
    rank = _ranks([node.id for node in picture.nodes], down)
    rows: list[list[str]] = [[] for _ in range(max(rank.values(), default=0) + 1)]
    for node in picture.nodes:
        rows[rank[node.id]].append(node.id)
    ways: list[tuple[Arrow, tuple[str, ...]]] = []
    for number, arrow in enumerate(down):
        passed = [arrow.source]
        for row in range(rank[arrow.source] + 1, rank[arrow.target]):
            waypoint = f"\0{number}.{row}"
            rows[row].append(waypoint)
            passed.append(waypoint)
        ways.append((arrow, (*passed, arrow.target)))
    _uncross(rows, [pair for _, passed in ways for pair in pairwise(passed)])
    return Layers(rows=tuple(map(tuple, rows)), ways=tuple(ways), back=tuple(back))


def is_waypoint(name: str) -> bool:
    """Return whether the name is a waypoint and not a box."""
    return name.startswith("\0")


def _returning(picture: Picture) -> list[Arrow]:
    """Return the arrows that close a cycle, in a depth-first search in the given order."""
    after: dict[str, list[Arrow]] = {node.id: [] for node in picture.nodes}
    for arrow in picture.arrows:
        after[arrow.source].append(arrow)
    found: list[Arrow] = []
    done: set[str] = set()

    def walk(node: str, above: tuple[str, ...]) -> None:
        for arrow in after[node]:
            if arrow.target in above:
                found.append(arrow)
            elif arrow.target not in done:
                walk(arrow.target, (*above, arrow.target))
        done.add(node)

    for node in picture.nodes:
        if node.id not in done:
            walk(node.id, (node.id,))
    return found


def _ranks(nodes: Iterable[str], down: list[Arrow]) -> dict[str, int]:
    above: dict[str, list[str]] = {name: [] for name in nodes}
    for arrow in down:
        above[arrow.target].append(arrow.source)
    rank: dict[str, int] = {}
    for name in TopologicalSorter(above).static_order():
        rank[name] = max((rank[source] + 1 for source in above[name]), default=0)
    return rank


def _uncross(rows: list[list[str]], pairs: list[tuple[str, str]]) -> None:
    """Order each row by the average position of its neighbors, above and below in turn."""
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for upper, lower in pairs:
        above.setdefault(lower, []).append(upper)
        below.setdefault(upper, []).append(lower)
    for sweep in range(_SWEEPS):
        near = below if sweep % 2 else above
        place = {
            name: index / max(len(row) - 1, 1) for row in rows for index, name in enumerate(row)
        }
        for row in reversed(rows) if sweep % 2 else rows:
            middle = {
                name: fmean([place[other] for other in near.get(name, [name])]) for name in row
            }
            row.sort(key=middle.__getitem__)
            place |= {name: index / max(len(row) - 1, 1) for index, name in enumerate(row)}
