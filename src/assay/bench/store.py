"""Stored results of a run: its folder with its request, and one line for each exercise."""

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any, Final

import anyio
from pydantic import TypeAdapter, ValidationError

from assay.bench.exercise import Exercise, Language, Track
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.messages import Usage


class Status(StrEnum):
    """The final state of one exercise."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    """Not solved; the last tests timed out."""
    MALFORMED = "malformed"
    """Not solved; the last reply was invalid."""
    EXHAUSTED_CONTEXT = "exhausted_context"
    """Not solved; the context of the model was full."""
    BUDGET = "budget"
    """Not solved; time, tokens or money were used up."""
    TAMPERED = "tampered"
    """Solved by appearance only: a forgery."""
    REFUSED = "refused"
    """The model or its provider refused."""
    NOT_RUN = "not_run"
    """A requirement is missing on this machine: no statement about the model."""
    INFRASTRUCTURE = "infrastructure"
    """Assay or the model's provider failed, also after retries: no statement about the model."""


COUNTED: Final = frozenset(Status) - {Status.NOT_RUN, Status.INFRASTRUCTURE}
"""The states that count in rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One proposal and its test result."""

    passed: bool
    by_exit_code: bool
    proven: bool
    reason: str
    timed_out: bool = False
    tests_passed: int = 0
    tests_total: int = 0
    tests_s: float = 0.0
    cpu_s: float = 0.0
    syntax_errors: int = 0
    indentation_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One repetition of one exercise."""

    exercise: str
    language: Language
    repeat: int
    """From 1."""
    track: Track
    status: Status
    reason: str = ""
    """One line for the user."""
    tries: tuple[Try, ...] = ()
    """Each run of hidden or final tests by the harness."""
    attempts: int = 0
    """Number of proposals, including those within a try."""
    usage: Usage = field(default_factory=Usage)
    malformed: int = 0
    """Number of invalid replies."""
    lazy_comments: int = 0
    model_s: float = 0.0
    wall_s: float = 0.0
    retries: int = 0
    """Number of restarts because Assay or the provider failed."""

    @property
    def key(self) -> str:
        return f"{self.exercise}#{self.repeat}"

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    @property
    def counted(self) -> bool:
        return self.status in COUNTED

    def passed_by(self, number: int) -> bool:
        """Return whether it was solved at or before this try."""
        return any(one.passed for one in self.tries[:number])


RESULT: Final = TypeAdapter(Result)

RUN: Final = "run.json"
RESULTS: Final = "results.jsonl"
_LOCK: Final = ".lock"


class ResultStore:
    """The results of one run on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = anyio.Lock()

    def replies_of(self, exercise: Exercise, repeat: int) -> Path:
        """Return the path of a model's stored replies for an exercise."""
        return self.folder / "replies" / f"{exercise.file_name}.{repeat}.jsonl"

    def work_of(self, exercise: Exercise, repeat: int) -> Path:
        """Return the folder in which Assay works on an exercise."""
        return self.folder / "work" / f"{exercise.file_name}.{repeat}"

    async def append(self, result: Result) -> None:
        """Write one result durably.

        Raises:
            JournalError: If it cannot be written.
        """
        line = RESULT.dump_json(result) + b"\n"
        with anyio.CancelScope(shield=True):
            async with self._writing:
                await anyio.to_thread.run_sync(_append, self.folder / RESULTS, line)

    def read(self) -> dict[str, Result]:
        """Return the results by key; of several lines for one exercise the last counts."""
        return {result.key: result for result in read_results(self.folder)}


def read_results(folder: Path) -> tuple[Result, ...]:
    """Read every result of a run, sorted by exercise and repeat, the last for each.

    Raises:
        UsageError: If the folder has no run.
        JournalError: If a line is damaged.
    """
    if not (folder / RUN).is_file():
        raise UsageError(
            f"{str(folder)!r} holds no run of a benchmark",
            hint="name a folder that `assay bench run` wrote to",
        )
    path = folder / RESULTS
    content = path.read_bytes() if path.is_file() else b""
    found: dict[str, Result] = {}
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            result = RESULT.validate_json(line)
        except ValidationError as error:
            raise JournalError(f"{path}:{number}: this line is damaged") from error
        found[result.key] = result
    return tuple(sorted(found.values(), key=lambda one: (one.exercise, one.repeat)))


def read_run(folder: Path) -> dict[str, Any]:
    """Return the request of a run.

    Raises:
        UsageError: If the folder holds no run.
    """
    try:
        return json.loads((folder / RUN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(folder)!r} holds no run of a benchmark",
            hint="name a folder that `assay bench run` wrote to",
        ) from error


@asynccontextmanager
async def open_store(folder: Path, asked: Mapping[str, Any]) -> AsyncGenerator[ResultStore]:
    """Start or resume a run, with exclusive access.

    Raises:
        UsageError: If the folder has a run with another request, or is in use.
    """
    lock = _open_lock(folder)
    try:
        _take(lock, folder)
        _begin(folder, asked)
        _cut_torn_line(folder / RESULTS)
        yield ResultStore(folder)
    finally:
        os.close(lock)


def _open_lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write to {str(folder)!r}: {error.strerror}") from error


def _take(lock: int, folder: Path) -> None:
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except OSError as error:
        raise UsageError(
            f"another process works on {str(folder)!r} already", hint="wait, or name another folder"
        ) from error


def _begin(folder: Path, asked: Mapping[str, Any]) -> None:
    path = folder / RUN
    if path.exists():
        before = read_run(folder)
        differing = [name for name in asked if before.get(name) != asked[name]]
        if differing:
            name = differing[0]
            raise UsageError(
                f"{str(folder)!r} is a run with {name} {before.get(name)!r}, not {asked[name]!r}",
                hint="name another folder with --out, or ask for the same again to go on",
            )
        return
    if any(entry.name != _LOCK for entry in folder.iterdir()):
        raise UsageError(
            f"{str(folder)!r} is not empty and holds no run", hint="name another folder with --out"
        )
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asked, indent=2) + "\n", "utf-8")
    partial.replace(path)


def _cut_torn_line(path: Path) -> None:
    if path.is_file():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _append(path: Path, line: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        said = f"a result cannot be written to {str(path)!r}: {error.strerror}"
        raise JournalError(said) from error


def is_final(result: Result) -> bool:
    """Return whether a result is final; a resume repeats external failures."""
    return result.status not in {Status.INFRASTRUCTURE, Status.NOT_RUN}
