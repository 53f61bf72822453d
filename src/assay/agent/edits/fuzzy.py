"""Find the lines of a text that are most similar to given lines, in bounded time.

A comparison of each position character by character takes minutes on a long file. One pass
therefore ranks all positions by shared trigrams, and only the best are compared in full.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_MOST_SEARCH_LINES = 600
_MOST_CHARS = 2_000_000
_LOOKED_AT_CLOSELY = 24
_LONGEST_LINE_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Lines `first` to before `after`, counted from 0, and their similarity, up to 1."""

    first: int
    after: int
    likeness: float


def closest_spans(
    lines: Sequence[str], wanted: Sequence[str], *, at_least: float
) -> tuple[Likeness, ...]:
    """Return the most similar positions, best first, without overlaps.

    Blank lines and whitespace around lines do not count.
    """
    kept = [at for at, line in enumerate(lines) if line.strip()]
    there = [lines[at].strip() for at in kept]
    search = [line.strip() for line in wanted if line.strip()]
    too_much = len(search) > _MOST_SEARCH_LINES or sum(map(len, there)) > _MOST_CHARS
    if not search or too_much:
        return ()
    spans = [
        Likeness(
            first=kept[first],
            after=kept[after - 1] + 1,
            likeness=_likeness(there[first:after], search),
        )
        for first, after in _promising(there, search)
    ]
    # Of equal scores, the first position wins, so the result is deterministic.
    ranked = sorted(spans, key=lambda span: (-span.likeness, span.first, span.after))
    chosen: list[Likeness] = []
    for span in ranked:
        apart = all(span.first >= other.after or span.after <= other.first for other in chosen)
        if span.likeness >= at_least and apart:
            chosen.append(span)
    return tuple(chosen)


def _promising(there: list[str], search: list[str]) -> list[tuple[int, int]]:
    """Return the windows that share most trigrams with the search lines."""
    pieces = [_pieces(line) for line in there]
    wanted = Counter(piece for line in search for piece in _pieces(line))
    slack = max(1, len(search) // 10)
    sizes = sorted({max(1, len(search) + by) for by in (-slack, 0, slack)})
    scored = [
        (share, -size, first)
        for size in sizes
        for first, share in enumerate(_shares(pieces, wanted, size))
    ]
    best = sorted(scored, reverse=True)[:_LOOKED_AT_CLOSELY]
    return [(first, first - size) for _, size, first in best]


def _pieces(line: str) -> list[str]:
    padded = f" {line} "
    return [padded[at : at + 3] for at in range(len(padded) - 2)]


def _shares(pieces: list[list[str]], wanted: Counter[str], size: int) -> Iterable[float]:
    """Yield, for each window of this size, the share of common trigrams."""
    here: Counter[str] = Counter()
    common = amount = 0
    total = wanted.total()
    for at, added in enumerate(pieces):
        amount += len(added)
        for piece in added:
            common += here[piece] < wanted[piece]
            here[piece] += 1
        if at >= size:
            amount -= len(pieces[at - size])
            for piece in pieces[at - size]:
                here[piece] -= 1
                common -= here[piece] < wanted[piece]
        if at >= size - 1:
            yield 2 * common / (amount + total)


def _likeness(there: list[str], search: list[str]) -> float:
    """Return the share of equal characters, line by line."""
    same = 0.0
    matcher = SequenceMatcher(None, there, search, autojunk=False)
    for tag, first, after, other_first, other_after in matcher.get_opcodes():
        if tag == "equal":
            same += sum(2 * len(line) for line in there[first:after])
        elif tag == "replace":
            rows = zip(there[first:after], search[other_first:other_after], strict=False)
            same += sum(_line_ratio(one, other) * (len(one) + len(other)) for one, other in rows)
    total = sum(map(len, there)) + sum(map(len, search))
    return same / total if total else 0.0


def _line_ratio(one: str, other: str) -> float:
    if max(len(one), len(other)) > _LONGEST_LINE_CHARS:
        pieces, others = Counter(_pieces(one)), Counter(_pieces(other))
        return 2 * (pieces & others).total() / (pieces.total() + others.total())
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
