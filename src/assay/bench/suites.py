"""Suites: lookup by name or folder, the selection of exercises, and two formats.

HumanEval has one JSON object per line. A folder suite is the format for a user's own exercises.
"""

import gzip
import hashlib
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.bench.exercise import Exercise, Language, Suite
from assay.bench.polyglot import load_polyglot, read_files
from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree, TreeFile

MARK: Final = "exercise.toml"
_FOLDER_HINT: Final = "see docs/reference/bench.md for what a suite consists of"


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
        raise UsageError(f"there is no */{MARK} in {str(folder)!r}", hint=_FOLDER_HINT)
    exercises = tuple(_load(place) for place in places)
    return Suite(name=folder.resolve().name, source=f"folder {folder.name}", exercises=exercises)


def _load(place: Path) -> Exercise:
    try:
        told = _Description.model_validate(tomllib.loads((place / MARK).read_text("utf-8")))
        docs = (place / "docs.md").read_text("utf-8")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"{place / MARK}: {where}: {first['msg'].lower()}", hint=_FOLDER_HINT
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(place)!r} is no exercise: {error}", hint=_FOLDER_HINT) from error
    workspace, tests, reference = (
        Tree(files=read_files(place / name)) for name in ("workspace", "tests", "reference")
    )
    solution = tuple(PurePosixPath(name) for name in told.solution)
    for path in solution:
        if path not in workspace.files:
            raise UsageError(f"{place / 'workspace' / path} is not there", hint=_FOLDER_HINT)
    if not tests.files:
        raise UsageError(f"{place / 'tests'} is empty", hint=_FOLDER_HINT)
    return Exercise(
        id=f"{told.language}/{place.name}",
        language=told.language,
        docs=docs,
        workspace=workspace,
        solution=solution,
        tests=tests,
        reference=reference,
        folder=PurePosixPath(told.folder),
        command=told.command,
        allowed=told.allowed,
    )


_SOLUTION: Final = PurePosixPath("solution.py")
_TESTS: Final = PurePosixPath("solution_test.py")
_GZIP: Final = b"\x1f\x8b"
_HUMANEVAL_HINT: Final = "give --dataset the file HumanEval.jsonl or HumanEval.jsonl.gz"


class _Task(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


def load_humaneval(path: Path) -> Suite:
    """Read the file, plain or compressed.

    Raises:
        UsageError: If the file does not exist, or has another format.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode()
    except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        said = f"cannot read HumanEval from {str(path)!r}: {error}"
        raise UsageError(said, hint=_HUMANEVAL_HINT) from error
    exercises: list[Exercise] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                exercises.append(_exercise(_Task.model_validate_json(line)))
        except ValidationError as error:
            raise UsageError(
                f"{path}:{number}: this is no task of HumanEval", hint=_HUMANEVAL_HINT
            ) from error
    if not exercises:
        raise UsageError(f"{str(path)!r} holds no exercise", hint=_HUMANEVAL_HINT)
    source = f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"
    return Suite(name="humaneval", source=source, exercises=tuple(exercises))


def _exercise(task: _Task) -> Exercise:
    name = task.entry_point
    tests = (
        f"from solution import *\nfrom solution import {name}\n\n{task.test.strip()}\n\n\n"
        f"def test_{name}():\n    check({name})\n"
    )
    return Exercise(
        id=task.task_id,
        language="python",
        docs=f"Complete the function `{name}` in `{_SOLUTION}` as its docstring says.\n",
        workspace=_file_tree(_SOLUTION, task.prompt),
        solution=(_SOLUTION,),
        tests=_file_tree(_TESTS, tests),
        reference=_file_tree(_SOLUTION, task.prompt + task.canonical_solution),
    )


def _file_tree(path: PurePosixPath, text: str) -> Tree:
    return Tree(files={path: TreeFile(text.encode())})


POLYGLOT: Final = "polyglot"
HUMANEVAL: Final = "humaneval"


def pulled_to(name: str, cache_dir: Path) -> Path:
    """Return the folder that `assay bench pull` uses for a suite."""
    return cache_dir / "suites" / name


def load_suite(name: str, *, dataset: Path | None, cache_dir: Path, strict: bool = False) -> Suite:
    """Read a suite by name, or one in the folder format by its path.

    Raises:
        UsageError: If it is unknown, missing or damaged.
    """
    if name == POLYGLOT:
        place = dataset or pulled_to(name, cache_dir)
        if not place.is_dir():
            raise UsageError(
                f"the exercises of {name} are not there",
                hint="run `assay bench pull polyglot`, or give a clone with --dataset",
            )
        return load_polyglot(place, strict=strict)
    if name == HUMANEVAL:
        if dataset is None:
            raise UsageError(
                "HumanEval is a file", hint="give it with --dataset HumanEval.jsonl.gz"
            )
        return load_humaneval(dataset)
    folder = Path(name)
    if folder.is_dir():
        return load_folder(folder)
    raise UsageError(
        f"there is no suite {name!r}",
        hint=f"choose {POLYGLOT}, {HUMANEVAL}, or the path of a folder with a suite in it",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The user's filters of a suite.

    Raises:
        UsageError: If a number is out of range.
    """

    languages: tuple[Language, ...] = ()
    """Empty: all."""
    names: tuple[str, ...] = ()
    """Globs of ids or their last parts; empty: all."""
    limit: int | None = None
    shard: tuple[int, int] = (1, 1)
    """The number of this shard, from 1, and the number of shards."""

    def __post_init__(self) -> None:
        number, count = self.shard
        if not 1 <= number <= count:
            raise UsageError(
                f"there is no shard {number} of {count}", hint="count from 1, as in --shard 1/4"
            )
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit must be a positive number, not {self.limit}")

    def of(self, suite: Suite) -> tuple[Exercise, ...]:
        """Return the selected exercises, in the suite's order.

        A limit selects them by a digest of their ids: always the same ones, from all languages.

        Raises:
            UsageError: If none is left.
        """
        chosen = [exercise for exercise in suite.exercises if self._wants(exercise)]
        by_digest = sorted(chosen, key=lambda one: hashlib.sha256(one.id.encode()).digest())
        kept = by_digest[: self.limit]
        number, count = self.shard
        kept = kept[number - 1 :: count]
        ids = {exercise.id for exercise in kept}
        found = tuple(exercise for exercise in suite.exercises if exercise.id in ids)
        if not found:
            raise UsageError(
                f"no exercise of {suite.name} is left",
                hint="ask for other languages or names; `assay bench list` shows all",
            )
        return found

    def _wants(self, exercise: Exercise) -> bool:
        if self.languages and exercise.language not in self.languages:
            return False
        short = exercise.id.rpartition("/")[2]
        return not self.names or any(
            fnmatchcase(exercise.id, name) or fnmatchcase(short, name) for name in self.names
        )


def read_shard(text: str) -> tuple[int, int]:
    """Parse `2/5`.

    Raises:
        UsageError: If the text has another form.
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise UsageError(f"not a shard: {text!r}", hint="write it as in --shard 1/4")
    return int(number), int(count)
