"""The project's own files, read for the tests of its architecture and for `make check`."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "assay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function or method of the package."""

    place: str
    lines: int


def modules() -> tuple[Path, ...]:
    """Return every module of the package that a person wrote."""
    return tuple(path for path in sorted(PACKAGE.rglob("*.py")) if "_pb2" not in path.name)


def name_of(module: Path) -> str:
    """Return the short name a person would use for it: its path in the package."""
    return module.relative_to(PACKAGE).as_posix()


@cache
def parse(module: Path) -> ast.Module:
    return ast.parse(module.read_bytes(), filename=str(module))


def functions(module: Path) -> Iterator[Function]:
    """Yield each function with its length from `def` to its last line, docstring included."""
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            yield Function(
                place=f"{name_of(module)}:{node.lineno} {node.name}", lines=last - node.lineno + 1
            )
