"""HumanEval: one JSON object per line, with a function to complete and its test."""

import gzip
import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.bench.exercise import Exercise, Suite
from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree, TreeFile

_SOLUTION: Final = PurePosixPath("solution.py")
_TESTS: Final = PurePosixPath("solution_test.py")
_GZIP: Final = b"\x1f\x8b"
_HINT: Final = "give --dataset the file HumanEval.jsonl or HumanEval.jsonl.gz"


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
        raise UsageError(said, hint=_HINT) from error
    exercises = tuple(
        _exercise(_task(line, f"{path}:{number}"))
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    )
    if not exercises:
        raise UsageError(f"{str(path)!r} holds no exercise", hint=_HINT)
    source = f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"
    return Suite(name="humaneval", source=source, exercises=exercises)


def _task(line: str, place: str) -> _Task:
    try:
        fields: Any = json.loads(line)
        return _Task.model_validate(fields)
    except (ValueError, ValidationError) as error:
        raise UsageError(f"{place}: this is no task of HumanEval", hint=_HINT) from error


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
        workspace=_tree(_SOLUTION, task.prompt),
        solution=(_SOLUTION,),
        tests=_tree(_TESTS, tests),
        reference=_tree(_SOLUTION, task.prompt + task.canonical_solution),
    )


def _tree(path: PurePosixPath, text: str) -> Tree:
    return Tree(files={path: TreeFile(text.encode())})
