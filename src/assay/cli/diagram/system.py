"""The diagrams to draw: the package's parts with their surroundings, and the agent's graph."""

import inspect
from typing import TYPE_CHECKING, Final

from assay.cli.diagram.package import package_parts
from assay.cli.diagram.picture import Arrow, Node, Picture, without_shortcuts

if TYPE_CHECKING:
    from assay.models.resolve import Availability
    from assay.settings.load import Settings

_BEGIN: Final = "begin"
_END: Final = "end"


def picture_of_parts(settings: "Settings", usable: tuple["Availability", ...]) -> Picture:
    """Return the parts of the package, with the backends, models and servers of the settings."""
    nodes, arrows = package_parts()
    around = [*_backends(settings), *_models(settings, usable), *_tools(settings)]
    there = {node.id for node in nodes}
    outside = [(part, node) for part, node in around if part in there]
    joined = (Arrow(source=part, target=node.id, sometimes=True) for part, node in outside)
    return Picture(
        title="The parts of Assay and their imports",
        nodes=(*nodes, *(node for _, node in outside)),
        arrows=(*without_shortcuts(arrows), *joined),
    )


def _backends(settings: "Settings") -> list[tuple[str, Node]]:
    from assay.sandbox.factory import BACKENDS

    chosen = settings.sandbox.backend
    return [
        ("sandbox", _outside(f"backend {name}", "what the settings name" if name == chosen else ""))
        for name in BACKENDS
    ]


def _models(settings: "Settings", usable: tuple["Availability", ...]) -> list[tuple[str, Node]]:
    found = [
        (
            "models",
            _outside(one.name, f"{one.reason}; `auto` takes it" if one.by_auto else one.reason),
        )
        for one in usable
        if one.usable
    ]
    default = settings.models.default
    if default != "auto" and all(node.title != default for _, node in found):
        found.append(("models", _outside(default, "what the settings name")))
    return found


def _tools(settings: "Settings") -> list[tuple[str, Node]]:
    return [
        ("tools", _outside(f"MCP server {name}", f"{server.approval}; {_reached(server.url)}"))
        for name, server in settings.tools.mcp.items()
    ]


def _reached(url: str | None) -> str:
    return f"at {url}" if url else "a program that is started here"


def _outside(title: str, about: str) -> Node:
    return Node(id=f"outside {title}", title=title, about=about, kind="outside")


def picture_of_agent() -> Picture:
    """Return the agent's graph as compiled.

    Raises:
        MissingExtraError: If LangGraph is not installed.
    """
    from assay.agent.graph import STEPS, describe_passages

    passages = describe_passages()
    steps = [
        Node(id=name, title=name, about=_first_sentence(work), kind="step")
        for name, work in STEPS.items()
    ]
    return Picture(
        title="The agent's graph",
        nodes=(
            Node(id=_BEGIN, title="goal", kind="end"),
            *steps,
            Node(id=_END, title="outcome", kind="end"),
        ),
        arrows=tuple(
            Arrow(
                source=passage.source or _BEGIN,
                target=passage.target or _END,
                label=passage.condition,
                sometimes=bool(passage.condition),
            )
            for passage in passages
        ),
    )


def _first_sentence(work: object) -> str:
    told = " ".join((inspect.getdoc(work) or "").split("\n\n", maxsplit=1)[0].split())
    return told.rstrip(".")
