"""Pictures as Mermaid text, which many Markdown viewers draw."""

import re
from collections.abc import Sequence

from assay.cli.diagram.picture import Arrow, Node, Picture

_CLASSES = """\
  classDef step fill:#eef4ff,stroke:#3b6fd4,color:#14213d
  classDef outside fill:#f6f1e7,stroke:#a07a2c,color:#3b2c0d,stroke-dasharray:4 3
  classDef end_ fill:#e9f7ef,stroke:#2e8b57,color:#0d3b22"""


def to_mermaid(pictures: Sequence[Picture]) -> str:
    """Return one flowchart with a frame for every picture."""
    lines = ["flowchart TB"]
    for number, picture in enumerate(pictures, 1):
        lines.append(f'  subgraph picture{number}["{_escaped(picture.title)}"]')
        lines += [f"    {_node(node, number)}" for node in picture.nodes]
        lines += [f"    {_arrow(arrow, number)}" for arrow in picture.arrows]
        lines.append("  end")
    return "\n".join([*lines, _CLASSES]) + "\n"


def _node(node: Node, number: int) -> str:
    about = f"<br/>{_escaped(node.about)}" if node.about else ""
    opening, closing = ("([", "])") if node.kind == "end" else ("[", "]")
    style = {"part": "", "end": ":::end_"}.get(node.kind, f":::{node.kind}")
    title = f"<b>{_escaped(node.title)}</b>"
    return f'{_name(node.id, number)}{opening}"{title}{about}"{closing}{style}'


def _arrow(arrow: Arrow, number: int) -> str:
    line = "-.->" if arrow.sometimes else "-->"
    label = f'|"{_escaped(arrow.label)}"|' if arrow.label else ""
    return f"{_name(arrow.source, number)} {line}{label} {_name(arrow.target, number)}"


def _name(text: str, number: int) -> str:
    # "end" alone is a keyword of Mermaid.
    return f"n{number}_{re.sub(r'[^A-Za-z0-9]', '_', text)}"


def _escaped(text: str) -> str:
    for letter, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(letter, code)
    return text
