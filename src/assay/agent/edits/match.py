"""Find the position in a text that a model's SEARCH lines refer to, with ever looser matching.

If nothing matches, find the most similar lines, in bounded time.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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


_ENOUGH_LIKENESS = 0.9
_LOOSEST_LIKENESS = 0.5
_FEWEST_CHARS_FOR_LIKENESS = 30
_FEWEST_CHARS_TO_KNOW_AGAIN = 20
_FEWEST_CHARS_IN_SEVERAL_LINES = 12
_MOST_PLACES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One match: `text[start:end]` is replaced by `replacement`."""

    start: int
    end: int
    replacement: str
    how: str = ""
    """The ignored differences; empty if none."""
    guessed: bool = False
    """Whether the lines are merely similar: the result must then parse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyThere:
    """The text already contains the replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambiguous:
    """Several positions match."""

    lines: tuple[int, ...]
    """The first lines of the matches, counted from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """No position matches."""

    near: Likeness | None
    """The most similar lines; None if there are none."""


Place = Found | AlreadyThere | Ambiguous | Missed


@dataclass(frozen=True, slots=True)
class _Span:
    """Whole lines of the text, and their replacement."""

    first: int
    after: int
    replacement: tuple[str, ...]
    how: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The search and replacement texts, line by line."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


def locate(text: str, search: str, replace: str) -> Place:
    """Find the position of `search`. All arguments have LF line ends, and `text` ends with LF.

    Raises:
        ValueError: If `search` is blank.
    """
    if not search.strip():
        raise ValueError("nothing to search for")
    exact = _exactly(text, search, replace)
    if exact is not None:
        return exact
    lines = text.split("\n")[:-1]
    wanted = _Wanted(_lines_of(search), _lines_of(replace))
    for layer in (_trailing_space, _outer_blanks, _indentation, _inner_blanks):
        spans = layer(lines, wanted)
        if spans:
            return _settle(text, lines, spans)
    if _is_known_again(text, lines, search, replace):
        return AlreadyThere()
    return _nearly(text, lines, wanted)


def _exactly(text: str, search: str, replace: str) -> Place | None:
    offsets = _offsets(text, search)
    whole = [at for at in offsets if _is_at_line_ends(text, at, at + len(search))]
    if search.endswith("\n"):
        # Whole lines win: the end of a longer line that reads the same is not meant.
        offsets = whole
        replace = replace if not replace or replace.endswith("\n") else replace + "\n"
    elif len(offsets) > 1:
        offsets = whole or [at for at in offsets if _is_at_word_ends(text, at, at + len(search))]
    if not offsets:
        return None
    if len(offsets) > 1:
        return Ambiguous(lines=tuple(text.count("\n", 0, at) + 1 for at in offsets))
    start = offsets[0]
    if _is_in_place(text, start, search, replace):
        return AlreadyThere()
    return Found(start=start, end=start + len(search), replacement=replace)


def _is_at_line_ends(text: str, start: int, end: int) -> bool:
    begins = start == 0 or text[start - 1] == "\n"
    return begins and (text[end - 1] == "\n" or text[end : end + 1] in {"\n", ""})


def _is_at_word_ends(text: str, start: int, end: int) -> bool:
    before, after = text[max(start - 1, 0) : start + 1], text[end - 1 : end + 1]
    return not re.fullmatch(r"\w\w", before) and not re.fullmatch(r"\w\w", after)


def _is_in_place(text: str, start: int, search: str, replace: str) -> bool:
    """Whether the replacement, which contains the search text, is already around it."""
    if search == replace:
        return True
    shifts = _offsets(replace, search)
    return any(shift <= start and text.startswith(replace, start - shift) for shift in shifts)


def _offsets(text: str, part: str) -> list[int]:
    """Return the offsets of a part of the text, including overlaps, up to a maximum."""
    offsets: list[int] = []
    at = text.find(part)
    while at >= 0 and len(offsets) < _MOST_PLACES:
        offsets.append(at)
        at = text.find(part, at + 1)
    return offsets


def _lines_of(text: str) -> tuple[str, ...]:
    lines = text.split("\n")
    return tuple(lines[:-1] if lines[-1] == "" else lines)


def _windows(lines: list[str], wanted: tuple[str, ...]) -> list[int]:
    """Return the positions of these lines; both sides are already normalized."""
    size = len(wanted)
    if not size:
        return []
    key = tuple(wanted)
    return [
        at
        for at, line in enumerate(lines[: len(lines) - size + 1])
        if line == key[0] and tuple(lines[at : at + size]) == key
    ]


def _trailing_space(lines: list[str], wanted: _Wanted) -> list[_Span]:
    search = tuple(line.rstrip() for line in wanted.search)
    found = _windows([line.rstrip() for line in lines], search)
    how = "matched ignoring trailing whitespace"
    return [_Span(at, at + len(search), wanted.replace, how) for at in found]


def _outer_blanks(lines: list[str], wanted: _Wanted) -> list[_Span]:
    search = _without_outer_blanks(tuple(line.rstrip() for line in wanted.search))
    replace = _without_outer_blanks(wanted.replace)
    found = _windows([line.rstrip() for line in lines], search)
    how = "matched ignoring blank lines around it"
    return [_Span(at, at + len(search), replace, how) for at in found]


def _indentation(lines: list[str], wanted: _Wanted) -> list[_Span]:
    how = "matched ignoring indentation"
    return _shifted(lines, list(range(len(lines))), wanted, how)


def _inner_blanks(lines: list[str], wanted: _Wanted) -> list[_Span]:
    filled = [at for at, line in enumerate(lines) if line.strip()]
    search = tuple(line for line in wanted.search if line.strip())
    how = "matched ignoring blank lines"
    return _shifted(lines, filled, _Wanted(search, wanted.replace), how)


def _shifted(lines: list[str], kept: list[int], wanted: _Wanted, how: str) -> list[_Span]:
    """Find lines that differ only by one shift of the indentation, and shift the replacement.

    `kept` has the numbers of the lines to compare.
    """
    search = _without_outer_blanks(wanted.search)
    replace = _without_outer_blanks(wanted.replace)
    bare = [lines[at].strip() for at in kept]
    spans: list[_Span] = []
    for at in _windows(bare, tuple(line.strip() for line in search)):
        numbers = kept[at : at + len(search)]
        shifted = _follow_shift([lines[number] for number in numbers], search, replace)
        if shifted is not None:
            spans.append(_Span(numbers[0], numbers[-1] + 1, shifted, how))
    return spans


def _follow_shift(
    there: list[str], search: tuple[str, ...], replace: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the replacement with the indentation of the file; None if no single shift fits."""
    for width in (0, 4, 2, 8):
        known = {
            _retabbed(_indent(wanted), width): _indent(line)
            for line, wanted in zip(there, search, strict=True)
            if wanted.strip()
        }
        shift = _shift_of(known)
        if shift is None:
            continue
        moved = [shift(_retabbed(_indent(line), width)) for line in replace]
        if all(
            _indent(line) == shift(_retabbed(_indent(wanted), width))
            for line, wanted in zip(there, search, strict=True)
            if wanted.strip()
        ):
            rows = zip(replace, moved, strict=True)
            return tuple(_indented(line, indent) for line, indent in rows)
    return None


def _shift_of(known: dict[str, str]) -> Callable[[str], str] | None:
    """Return a shift for the pairs (written, there); None if there is none."""
    written, there = min(known.items(), key=lambda pair: len(pair[0]))
    if there.endswith(written):
        more = there.removesuffix(written)
        return lambda indent: more + indent
    if written.endswith(there):
        less = written.removesuffix(there)
        return lambda indent: indent.removeprefix(less) if indent.startswith(less) else ""
    return None


def _retabbed(indent: str, width: int) -> str:
    """Convert an indentation from spaces to tabs or back; with width 0, return it unchanged."""
    if not width:
        return indent
    return (
        indent.replace("\t", " " * width) if "\t" in indent else indent.replace(" " * width, "\t")
    )


def _indented(line: str, indent: str) -> str:
    return indent + line.lstrip() if line.strip() else ""


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _without_outer_blanks(lines: tuple[str, ...]) -> tuple[str, ...]:
    filled = [at for at, line in enumerate(lines) if line.strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else ()


def _settle(text: str, lines: list[str], spans: list[_Span]) -> Place:
    if len(spans) > 1:
        return Ambiguous(lines=tuple(span.first + 1 for span in spans))
    span = spans[0]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    replacement = "".join(f"{line}\n" for line in span.replacement)
    start, end = starts[span.first], starts[span.after]
    search = text[start:end]
    if _is_in_place(text, start, search, replacement):
        return AlreadyThere()
    return Found(start=start, end=end, replacement=replacement, how=span.how)


def _is_known_again(text: str, lines: list[str], search: str, replace: str) -> bool:
    """Whether the text already contains the replacement, at any indentation.

    Short replacements occur by chance, so they do not count.
    """
    wanted = _without_outer_blanks(_lines_of(replace))
    several = sum(bool(line.strip()) for line in wanted) > 1
    enough = _FEWEST_CHARS_IN_SEVERAL_LINES if several else _FEWEST_CHARS_TO_KNOW_AGAIN
    if sum(len(line.strip()) for line in wanted) < enough:
        return False
    if not search.endswith("\n") and replace.strip() in text:
        return True
    return bool(_shifted(lines, list(range(len(lines))), _Wanted(wanted, ()), ""))


def _nearly(text: str, lines: list[str], wanted: _Wanted) -> Place:
    search = _without_outer_blanks(wanted.search)
    spans = closest_spans(lines, search, at_least=_LOOSEST_LIKENESS)
    good = [span for span in spans if span.likeness >= _ENOUGH_LIKENESS]
    if not good or sum(len(line.strip()) for line in search) < _FEWEST_CHARS_FOR_LIKENESS:
        return Missed(near=spans[0] if spans else None)
    how = f"matched lines that are {good[0].likeness:.0%} the same"
    there, written = _indent(lines[good[0].first]), _indent(search[0])
    shift = _shift_of({written: there}) or str
    replacement = tuple(
        _indented(line, shift(_indent(line))) for line in _without_outer_blanks(wanted.replace)
    )
    place = _settle(text, lines, [_Span(span.first, span.after, replacement, how) for span in good])
    return dataclasses.replace(place, guessed=True) if isinstance(place, Found) else place
