"""The parts of the package and their imports, read from the installed source."""

import ast
import re
from pathlib import Path
from typing import Final

import assay
from assay.cli.diagram.picture import Arrow, Node

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
