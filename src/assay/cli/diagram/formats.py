"""Pictures as text for a terminal, as Mermaid, and as SVG in a light and a dark theme."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from statistics import fmean
from typing import Final

from assay.cli.diagram.picture import Arrow, Layers, Node, Picture, is_waypoint, layered

_STEP: Final = " ─▶ "
_NARROWEST: Final = 20
_WIDEST: Final = 34


def to_text(pictures: Sequence[Picture], *, width: int = 100) -> str:
    """Return all pictures, one below the other, no wider than `width` if possible."""
    return "\n\n".join(_text_picture(picture, width) for picture in pictures) + "\n"


def _text_picture(picture: Picture, width: int) -> str:
    layers = layered(picture)
    draw = _chain if layers.is_chain else _rows
    return "\n".join([picture.title, "", *draw(picture, layers, width)])


def _chain(picture: Picture, layers: Layers, width: int) -> list[str]:
    """Draw one line of boxes, with returning arrows below it."""
    nodes = {node.id: node for node in picture.nodes}
    titles = [nodes[row[0]].title for row in layers.rows]
    line = "  " + _STEP.join(titles)
    middle: dict[str, int] = {}
    column = 2
    for (name,), title in zip(layers.rows, titles, strict=True):
        middle[name] = column + len(title) // 2
        column += len(title) + len(_STEP)
    lines = [line]
    for arrow in layers.back:
        lines += _returning(arrow, middle[arrow.target], middle[arrow.source])
    labels = [f"{nodes[arrow.source].title} ─{arrow.label}─▶ {nodes[arrow.target].title}"
              for arrow, _ in layers.ways if arrow.label]  # fmt: skip
    lines += ["", *(f"  {label}" for label in labels)] if labels else []
    longest = max((len(title) for title in titles), default=0)
    about = [node for node in picture.nodes if node.about]
    lines += [""] if about else []
    for node in about:
        told = textwrap.wrap(node.about, max(width - longest - 4, _NARROWEST))
        lines.append(f"  {node.title:{longest}}  {told[0]}")
        lines += [" " * (longest + 4) + more for more in told[1:]]
    return lines


def _returning(arrow: Arrow, left: int, right: int) -> list[str]:
    gap = right - left - 1
    label = f" {arrow.label} ".center(gap, "─") if arrow.label else "─" * gap
    return [" " * left + "▲" + " " * gap + "│", " " * left + "└" + label + "┘"]


def _rows(picture: Picture, layers: Layers, width: int) -> list[str]:
    """Draw boxes in rows; each lists the targets of its arrows."""
    nodes = {node.id: node for node in picture.nodes}
    lines: list[str] = []
    for number, row in enumerate(layers.rows):
        if number:
            lines.append("  ▼")
        boxes = [nodes[name] for name in row if not is_waypoint(name)]
        lines += _row_of_boxes(boxes, picture, width)
    return lines


def _row_of_boxes(boxes: list[Node], picture: Picture, width: int) -> list[str]:
    per_line = max(1, min(len(boxes), width // (_NARROWEST + 5)))
    inner = min(_WIDEST, width // per_line - 5) if len(boxes) > 1 else min(width - 6, 70)
    lines: list[str] = []
    for start in range(0, len(boxes), per_line):
        drawn = [_box(node, picture, inner) for node in boxes[start : start + per_line]]
        height = max(len(box) for box in drawn)
        padded = [
            [*box[:-1], *[f"│ {' ' * inner} │"] * (height - len(box)), box[-1]] for box in drawn
        ]
        lines += ["  " + " ".join(parts) for parts in zip(*padded, strict=True)]
    return lines


def _box(node: Node, picture: Picture, inner: int) -> list[str]:
    titles = {each.id: each.title for each in picture.nodes}
    targets = [titles[arrow.target] for arrow in picture.arrows if arrow.source == node.id]
    told = textwrap.wrap(node.about, inner, max_lines=_ABOUT_LINES, placeholder=" …")
    leads = textwrap.wrap(f"→ {', '.join(targets)}", inner) if targets else []
    corners = ("╭", "╮", "╰", "╯") if node.kind == "outside" else ("┌", "┐", "└", "┘")
    top = f"{corners[0]}─{f' {node.title} '[:inner]:─<{inner}}─{corners[1]}"
    bottom = f"{corners[2]}─{'─' * inner}─{corners[3]}"
    return [top, *(f"│ {line:{inner}} │" for line in (*told, *leads)), bottom]


_MERMAID_CLASSES = """\
  classDef step fill:#eef4ff,stroke:#3b6fd4,color:#14213d
  classDef outside fill:#f6f1e7,stroke:#a07a2c,color:#3b2c0d,stroke-dasharray:4 3
  classDef end_ fill:#e9f7ef,stroke:#2e8b57,color:#0d3b22"""


def to_mermaid(pictures: Sequence[Picture]) -> str:
    """Return one flowchart with a frame for every picture."""
    lines = ["flowchart TB"]
    for number, picture in enumerate(pictures, 1):
        lines.append(f'  subgraph picture{number}["{_mermaid_text(picture.title)}"]')
        lines += [f"    {_mermaid_node(node, number)}" for node in picture.nodes]
        lines += [f"    {_mermaid_arrow(arrow, number)}" for arrow in picture.arrows]
        lines.append("  end")
    return "\n".join([*lines, _MERMAID_CLASSES]) + "\n"


def _mermaid_node(node: Node, number: int) -> str:
    about = f"<br/>{_mermaid_text(node.about)}" if node.about else ""
    opening, closing = ("([", "])") if node.kind == "end" else ("[", "]")
    style = {"part": "", "end": ":::end_"}.get(node.kind, f":::{node.kind}")
    title = f"<b>{_mermaid_text(node.title)}</b>"
    return f'{_mermaid_id(node.id, number)}{opening}"{title}{about}"{closing}{style}'


def _mermaid_arrow(arrow: Arrow, number: int) -> str:
    line = "-.->" if arrow.sometimes else "-->"
    label = f'|"{_mermaid_text(arrow.label)}"|' if arrow.label else ""
    return f"{_mermaid_id(arrow.source, number)} {line}{label} {_mermaid_id(arrow.target, number)}"


def _mermaid_id(text: str, number: int) -> str:
    # "end" alone is a keyword of Mermaid.
    return f"n{number}_{re.sub(r'[^A-Za-z0-9]', '_', text)}"


def _mermaid_text(text: str) -> str:
    for letter, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(letter, code)
    return text


_LETTER: Final = 6.6
"""Approximate width of a letter."""
_ABOUT_CHARS: Final = 30
_ABOUT_LINES: Final = 4
_LINE: Final = 16.0
_PADDING: Final = 12.0
_BETWEEN: Final = 22.0
_ROW_GAP: Final = 52.0
_MARGIN: Final = 28.0
_HEADING: Final = 46.0
_WAYPOINT: Final = 14.0
_SWEEPS: Final = 12
_SVG_STYLE: Final = """
  svg { --paper: #ffffff; --ink: #1c2430; --soft: #5b6675; --line: #7b8794; --part: #f4f6f9;
    --edge: #b6c0cc; --step: #eaf1ff; --step-edge: #4a7bd8; --outside: #fbf5e6;
    --outside-edge: #b98a2e; --end: #e8f6ee; --end-edge: #35915f; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #12161c; --ink: #e7ecf3; --soft: #a3afbd; --line: #8593a3; --part: #1d242d;
      --edge: #465362; --step: #17263f; --step-edge: #6d9bf0; --outside: #2b2413;
      --outside-edge: #d0a550; --end: #14291e; --end-edge: #58b884; } }
  .paper { fill: var(--paper); }
  text { font: 12.5px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: var(--soft); }
  .title { font-weight: 600; font-size: 14px; fill: var(--ink); }
  .heading { font-weight: 600; font-size: 17px; fill: var(--ink); }
  .box { fill: var(--part); stroke: var(--edge); stroke-width: 1.2; }
  .step { fill: var(--step); stroke: var(--step-edge); }
  .outside { fill: var(--outside); stroke: var(--outside-edge); stroke-dasharray: 5 3; }
  .end { fill: var(--end); stroke: var(--end-edge); }
  .arrow { fill: none; stroke: var(--line); stroke-width: 1.4; }
  .sometimes { stroke-dasharray: 5 4; }
  .tip { fill: var(--line); }
  .label { fill: var(--soft); font-size: 11.5px; paint-order: stroke; stroke: var(--paper);
    stroke-width: 5px; }
"""

_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
    'markerHeight="7" orient="auto-start-reverse"><path class="tip" d="M0 0 10 5 0 10z"/>'
    "</marker></defs>"
)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """The position and size of a box; `x` and `y` are its center."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> Point:
        return self.x, self.y - self.height / 2

    @property
    def bottom(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def left(self) -> Point:
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> Point:
        return self.x + self.width / 2, self.y


def to_svg(pictures: Sequence[Picture]) -> str:
    """Return one drawing with the pictures below each other."""
    parts: list[str] = []
    width, height = 0.0, _MARGIN
    for picture in pictures:
        drawn, wide, high = _svg_picture(picture, height)
        parts += drawn
        width = max(width, wide)
        height += high + _MARGIN
    title = escape(" · ".join(picture.title for picture in pictures))
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        f"<style>{_SVG_STYLE}</style>",
        _TIP,
        '<rect class="paper" width="100%" height="100%"/>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _svg_picture(picture: Picture, top: float) -> tuple[list[str], float, float]:
    """Return a picture whose upper edge is at `top`, with its width and height."""
    layers = layered(picture)
    sizes = {node.id: _size(node) for node in picture.nodes}
    place = _in_a_line if layers.is_chain else _in_rows
    boxes = place(layers, sizes, top + _HEADING)
    parts = [
        f'<text class="heading" x="{_MARGIN}" y="{top + 18:.1f}">{escape(picture.title)}</text>'
    ]
    parts += [_svg_way(arrow, [boxes[name] for name in passed], flat=layers.is_chain)
              for arrow, passed in layers.ways]  # fmt: skip
    parts += [_return(arrow, boxes, number) for number, arrow in enumerate(layers.back)]
    parts += [_svg_node(node, boxes[node.id]) for node in picture.nodes]
    right = max(box.x + box.width / 2 for box in boxes.values())
    bottom = max(box.y + box.height / 2 for box in boxes.values()) + 46.0 * len(layers.back)
    return parts, right + _MARGIN, bottom - top


def _size(node: Node) -> _Box:
    lines = _told(node)
    letters = max([len(node.title) * 1.35, *(len(line) for line in lines)])
    height = 2 * _PADDING + _LINE * (1 + len(lines))
    return _Box(x=0, y=0, width=letters * _LETTER + 2 * _PADDING, height=height)


def _told(node: Node) -> list[str]:
    return textwrap.wrap(node.about, _ABOUT_CHARS, max_lines=_ABOUT_LINES, placeholder=" …")


def _in_a_line(layers: Layers, sizes: dict[str, _Box], top: float) -> dict[str, _Box]:
    boxes: dict[str, _Box] = {}
    middle = top + max(box.height for box in sizes.values()) / 2
    left = _MARGIN
    for (name,) in layers.rows:
        size = sizes[name]
        boxes[name] = replace(size, x=left + size.width / 2, y=middle)
        left += size.width + 2 * _BETWEEN
    return boxes


def _in_rows(layers: Layers, sizes: dict[str, _Box], top: float) -> dict[str, _Box]:
    boxes: dict[str, _Box] = {}
    for row in layers.rows:
        found = {
            name: _Box(x=0, y=0, width=_WAYPOINT, height=0) if is_waypoint(name) else sizes[name]
            for name in row
        }
        height = max(box.height for box in found.values())
        left = 0.0
        for name, box in found.items():
            # A waypoint is as high as its row, so that the arrow passes its neighbors straight.
            high = height if is_waypoint(name) else box.height
            boxes[name] = replace(box, x=left + box.width / 2, y=top + height / 2, height=high)
            left += box.width + _BETWEEN
        top += height + _ROW_GAP
    _settle(layers, boxes)
    shift = _MARGIN - min(box.x - box.width / 2 for box in boxes.values())
    return {name: replace(box, x=box.x + shift) for name, box in boxes.items()}


def _settle(layers: Layers, boxes: dict[str, _Box]) -> None:
    """Move boxes toward their neighbors in other rows, without changing their order."""
    near: dict[str, list[str]] = {}
    for _, passed in layers.ways:
        for upper, lower in pairwise(passed):
            near.setdefault(upper, []).append(lower)
            near.setdefault(lower, []).append(upper)
    for _ in range(_SWEEPS):
        for row in layers.rows:
            wanted = {
                name: fmean([boxes[other].x for other in near.get(name, [name])]) for name in row
            }
            _spread(row, wanted, boxes)


def _spread(row: tuple[str, ...], wanted: dict[str, float], boxes: dict[str, _Box]) -> None:
    """Give each box its place or the next free one, then center the whole row."""
    placed: dict[str, float] = {}
    edge = float("-inf")
    for name in row:
        half = boxes[name].width / 2
        placed[name] = max(wanted[name], edge + _BETWEEN + half)
        edge = placed[name] + half
    shift = sum(wanted[name] - placed[name] for name in row) / len(row)
    for name in row:
        boxes[name] = replace(boxes[name], x=placed[name] + shift)


def _svg_node(node: Node, box: _Box) -> str:
    left, top = box.x - box.width / 2, box.y - box.height / 2
    round_ = box.height / 2 if node.kind == "end" else 8
    baseline = top + _PADDING + _LINE - 4
    corner = f'x="{left:.1f}" y="{top:.1f}" rx="{round_:.0f}"'
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    middle = f'text-anchor="middle" x="{box.x:.1f}"'
    title = escape(node.title)
    lines = [
        f'<rect class="box {node.kind}" {corner} {size}/>',
        f'<text class="title" {middle} y="{baseline:.1f}">{title}</text>',
    ]
    for number, line in enumerate(_told(node), 1):
        y = baseline + number * _LINE
        lines.append(f'<text {middle} y="{y:.1f}">{escape(line)}</text>')
    return "\n".join(lines)


def _svg_way(arrow: Arrow, boxes: list[_Box], *, flat: bool) -> str:
    if flat:
        (x1, y1), (x2, y2) = boxes[0].right, boxes[-1].left
        return _svg_path(
            arrow, f"M{x1:.1f} {y1:.1f} L{x2 - 1:.1f} {y2:.1f}", ((x1 + x2) / 2, y1 - 8)
        )
    steps = [f"M{_at(boxes[0].bottom)}"]
    here = boxes[0].bottom
    for number, box in enumerate(boxes[1:], 1):
        there = box.top
        half = (here[1] + there[1]) / 2
        steps.append(f"C{here[0]:.1f} {half:.1f} {there[0]:.1f} {half:.1f} {_at(there)}")
        if number < len(boxes) - 1:
            steps.append(f"L{_at(box.bottom)}")
        here = box.bottom
    first, second = boxes[0].bottom, boxes[1].top
    return _svg_path(
        arrow, " ".join(steps), ((first[0] + second[0]) / 2, (first[1] + second[1]) / 2)
    )


def _return(arrow: Arrow, boxes: dict[str, _Box], number: int) -> str:
    """Draw a returning arrow below all boxes."""
    start, end = boxes[arrow.source].bottom, boxes[arrow.target].bottom
    low = max(box.bottom[1] for box in boxes.values()) + 34.0 + 40.0 * number
    path = (
        f"M{_at(start)} L{start[0]:.1f} {low - 12:.1f} Q{start[0]:.1f} {low:.1f} "
        f"{start[0] - 12:.1f} {low:.1f} L{end[0] + 12:.1f} {low:.1f} Q{end[0]:.1f} {low:.1f} "
        f"{end[0]:.1f} {low - 12:.1f} L{end[0]:.1f} {end[1] + 1:.1f}"
    )
    return _svg_path(arrow, path, ((start[0] + end[0]) / 2, low + 4))


def _svg_path(arrow: Arrow, path: str, middle: Point) -> str:
    style = "arrow sometimes" if arrow.sometimes else "arrow"
    drawn = f'<path class="{style}" d="{path}" marker-end="url(#tip)"/>'
    if not arrow.label:
        return drawn
    x, y = middle
    label = escape(arrow.label)
    return (
        f'{drawn}\n<text class="label" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">{label}</text>'
    )


def _at(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"
