"""Folder suite: the simple format for a user's own exercises, one folder each.

exercise.toml   language, solution, and settings that differ from the defaults
docs.md         the task description
workspace/      the initial files with the stubs of the solution
tests/          the tests, copied over the workspace
reference/      a correct solution; the solver never sees it
"""

import tomllib
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.bench.exercise import Exercise, Language, Suite
from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree, TreeFile

MARK: Final = "exercise.toml"
_HINT: Final = "see docs/reference/bench.md for what a suite consists of"


class _Description(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    language: Language
    solution: tuple[str, ...] = Field(min_length=1)
    command: str = ""
    folder: str = ""
    allowed: tuple[str, ...] = ()


def load_folder(folder: Path) -> Suite:
    """Read a suite; its name is the name of its folder.

    Raises:
        UsageError: If there is no exercise, or one is incomplete.
    """
    places = sorted(path.parent for path in folder.glob(f"*/{MARK}"))
    if not places:
        raise UsageError(f"there is no */{MARK} in {str(folder)!r}", hint=_HINT)
    exercises = tuple(_load(place) for place in places)
    return Suite(name=folder.resolve().name, source=f"folder {folder.name}", exercises=exercises)


def _load(place: Path) -> Exercise:
    try:
        told = _Description.model_validate(tomllib.loads((place / MARK).read_text("utf-8")))
        docs = (place / "docs.md").read_text("utf-8")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{place / MARK}: {where}: {first['msg'].lower()}", hint=_HINT) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(place)!r} is no exercise: {error}", hint=_HINT) from error
    workspace, tests = _tree(place / "workspace"), _tree(place / "tests")
    solution = tuple(PurePosixPath(name) for name in told.solution)
    for path in solution:
        if path not in workspace.files:
            raise UsageError(f"{place / 'workspace' / path} is not there", hint=_HINT)
    if not tests.files:
        raise UsageError(f"{place / 'tests'} is empty", hint=_HINT)
    return Exercise(
        id=f"{told.language}/{place.name}",
        language=told.language,
        docs=docs,
        workspace=workspace,
        solution=solution,
        tests=tests,
        reference=_tree(place / "reference"),
        folder=PurePosixPath(told.folder),
        command=told.command,
        allowed=told.allowed,
    )


def _tree(folder: Path) -> Tree:
    files: dict[PurePosixPath, TreeFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
            executable = bool(path.stat().st_mode & 0o100)
            files[PurePosixPath(path.relative_to(folder))] = TreeFile(path.read_bytes(), executable)
    return Tree(files=files)
