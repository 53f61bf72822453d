"""Pictures as text, for a terminal or a file."""

import textwrap
from collections.abc import Sequence
from typing import Final

from assay.cli.diagram.layers import Layers, is_waypoint, layered
from assay.cli.diagram.picture import Arrow, Node, Picture

_STEP: Final = " ─▶ "
_NARROWEST: Final = 20
_WIDEST: Final = 34
_ABOUT_LINES: Final = 4


def to_text(pictures: Sequence[Picture], *, width: int = 100) -> str:
    """Return all pictures, one below the other, no wider than `width` if possible."""
    return "\n\n".join(_drawn(picture, width) for picture in pictures) + "\n"


def _drawn(picture: Picture, width: int) -> str:
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
