"""`assay map`: draws the parts of the package and the agent's graph.

The parts and their imports are read from the installed source.
"""

import ast
import inspect
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

import assay
from assay.cli.diagram.picture import Arrow, Node, Picture, without_shortcuts
from assay.cli.options import FILE
from assay.contracts.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.models.resolve import Availability
    from assay.settings.load import Settings


What = Literal["parts", "agent", "all"]
Format = Literal["text", "mermaid", "svg"]

_BY_ENDING: Final[dict[str, Format]] = {
    ".svg": "svg",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".txt": "text",
}
_WIDEST: Final = 160


@click.command(name="map")
@click.option(
    "--what",
    type=click.Choice(["parts", "agent", "all"]),
    default="all",
    show_default=True,
    help="The package's parts, the agent's steps, or both.",
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["text", "mermaid", "svg"]),
    help="Output format.  [default: by the suffix of --out, else text]",
)
@click.option("--out", type=FILE, help="Write to this file.")
def command(what: What, wanted: Format | None, out: Path | None) -> int:
    """Draw the parts of the package, the backends, models and servers, and the agent's graph.

    Parts and arrows come from the imports of the installed package, steps from the compiled
    graph.
    """
    import anyio

    from assay.cli.diagram.formats import to_mermaid, to_svg, to_text
    from assay.models.resolve import list_available
    from assay.settings.load import load_settings

    pictures: list[Picture] = []
    if what != "agent":
        settings = load_settings()
        pictures.append(picture_of_parts(settings, anyio.run(list_available, settings.models)))
    if what != "parts":
        pictures.append(picture_of_agent())
    match wanted or (_BY_ENDING.get(out.suffix.lower(), "text") if out else "text"):
        case "text":
            columns = 100 if out else shutil.get_terminal_size((100, 24)).columns
            drawn = to_text(pictures, width=min(columns, _WIDEST))
        case "mermaid":
            drawn = to_mermaid(pictures)
        case "svg":
            drawn = to_svg(pictures)
    if out is None:
        click.echo(drawn, nl=False)
        return ExitCode.ACCEPTED
    try:
        out.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(out)!r} cannot be written: {error.strerror}") from error
    click.echo(f"written to {out}")
    return ExitCode.ACCEPTED


_IMPORT: Final = re.compile(rb"^\s*(?:from|import)[ ]assay\.(\w+)", re.MULTILINE)
_FROM_TOP: Final = re.compile(rb"^\s*from[ ]assay[ ]import[ ](\w+)", re.MULTILINE)
_SETTINGS: Final = "settings"


def package_parts() -> tuple[tuple[Node, ...], tuple[Arrow, ...]]:
    """Return a box for each part, with its own first sentence, and an arrow for each import."""
    home = Path(assay.__path__[0])
    files: dict[str, list[Path]] = {}
    for path in sorted(home.rglob("*.py")):
        inside = path.relative_to(home)
        if not inside.parts[0].startswith("_"):
            files.setdefault(part_of(inside.parts[0].removesuffix(".py")), []).append(path)
    nodes = tuple(Node(id=name, title=name, about=_about(home, name)) for name in files)
    arrows = {
        (name, target)
        for name, paths in files.items()
        for path in paths
        for target in _imported(path.read_bytes())
        if target != name and target in files
    }
    return nodes, tuple(Arrow(source=source, target=target) for source, target in sorted(arrows))


def part_of(module: str) -> str:
    """Return the part that a folder or module of the package belongs to."""
    return _SETTINGS if "setting" in module else module


def _imported(source: bytes) -> set[str]:
    named = [*_IMPORT.findall(source), *_FROM_TOP.findall(source)]
    return {part_of(name.decode()) for name in named}


def _about(home: Path, name: str) -> str:
    """Return the first sentence of a part's docstring."""
    folder = home / name / "__init__.py"
    source = folder if folder.exists() else home / f"{name}.py"
    told = ast.get_docstring(ast.parse(source.read_bytes())) or ""
    first = " ".join(told.split("\n\n", maxsplit=1)[0].split())
    return re.split(r"[.;](?:\s|$)", first, maxsplit=1)[0]


_BEGIN: Final = "begin"
_END: Final = "end"


def picture_of_parts(settings: "Settings", usable: tuple["Availability", ...]) -> Picture:
    """Return the parts of the package, with the backends, models and servers of the settings."""
    from assay.settings.types import backend_names

    nodes, arrows = package_parts()
    chosen, default = settings.sandbox.backend, settings.models.default
    named = "what the settings name"
    around = [
        ("sandbox", f"backend {name}", named if name == chosen else "") for name in backend_names()
    ]
    around += [
        ("models", one.name, f"{one.reason}; `auto` takes it" if one.by_auto else one.reason)
        for one in usable
        if one.usable
    ]
    if default != "auto" and all(title != default for _, title, _ in around):
        around.append(("models", default, named))
    for name, server in settings.tools.mcp.items():
        reached = f"at {server.url}" if server.url else "a program that is started here"
        around.append(("tools", f"MCP server {name}", f"{server.approval}; {reached}"))
    there = {node.id for node in nodes}
    outside = [
        (part, Node(id=f"outside {title}", title=title, about=about, kind="outside"))
        for part, title, about in around
        if part in there
    ]
    joined = (Arrow(source=part, target=node.id, sometimes=True) for part, node in outside)
    return Picture(
        title="The parts of Assay and their imports",
        nodes=(*nodes, *(node for _, node in outside)),
        arrows=(*without_shortcuts(arrows), *joined),
    )


def picture_of_agent() -> Picture:
    """Return the agent's graph as compiled, with the end of a run only after its last step.

    Raises:
        MissingExtraError: If LangGraph is not installed.
    """
    from assay.agent.graph import NEXT, STEPS, describe_passages

    *early, _ = STEPS
    steps = [
        Node(id=name, title=name, about=_first_sentence(work), kind="step")
        for name, work in STEPS.items()
    ]
    return Picture(
        title="The agent's graph; each step can also end the run",
        nodes=(
            Node(id=_BEGIN, title="goal", kind="end"),
            *steps,
            Node(id=_END, title="outcome", kind="end"),
        ),
        arrows=tuple(
            Arrow(
                source=passage.source or _BEGIN,
                target=passage.target or _END,
                label="" if passage.condition == NEXT else passage.condition,
                sometimes=passage.condition not in {"", NEXT},
            )
            for passage in describe_passages()
            if passage.target or passage.source not in early
        ),
    )


def _first_sentence(work: object) -> str:
    told = " ".join((inspect.getdoc(work) or "").split("\n\n", maxsplit=1)[0].split())
    return told.rstrip(".")
