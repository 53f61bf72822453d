"""Stored results of a run: its folder with its request, and one line for each exercise."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
from pydantic import Field, TypeAdapter, ValidationError

from assay.bench.exercise import Exercise, Language, Track
from assay.contracts.errors import JournalError, UsageError
from assay.contracts.messages import Usage
from assay.files import JsonlFile, whole_lines
from assay.storage.lock import hold


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One proposal and its test result."""

    passed: bool
    by_exit_code: bool
    """The result of the original harness."""
    proven: bool
    """Whether the verifier accepted it."""
    reason: str
    timed_out: bool = False
    tampered: bool = False
    tests_passed: int = 0
    tests_total: int = 0
    """Both as far as the verifier ran."""
    tests_s: float = 0.0
    """Wall time of the bare run."""
    cpu_s: float = 0.0
    """Its processor time: a timeout with little of it indicates a busy machine."""
    syntax_errors: int = 0
    indentation_errors: int = 0
    output: Annotated[str, Field(exclude=True)] = ""
    """The output of the tests, both streams in the order of arrival. It is not stored."""


@dataclass(slots=True, kw_only=True)
class Result:
    """One repetition of one exercise; the track fills it in."""

    exercise: str
    language: Language
    repeat: int
    """From 1."""
    track: Track
    status: Status = Status.FAILED
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
        """Whether it counts in rates, and is final: a resume repeats external failures."""
        return self.status not in {Status.INFRASTRUCTURE, Status.NOT_RUN}

    def passed_by(self, number: int) -> bool:
        """Return whether it was solved at or before this try."""
        return any(one.passed for one in self.tries[:number])


RESULT: Final = TypeAdapter(Result)

RUN: Final = "run.json"
RESULTS: Final = "results.jsonl"
VALIDATION: Final = "validation.json"
ENVIRONMENT: Final = "environment.json"
_LOCK: Final = "lock"
"""The file of `assay.storage.lock`."""
_NO_RUN_HINT: Final = "name a folder that `assay bench run` wrote to"


class ResultStore:
    """The results of one run on disk."""

    def __init__(self, folder: Path, file: JsonlFile) -> None:
        self.folder = folder
        self._file = file
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
                try:
                    await anyio.to_thread.run_sync(partial(self._file.append, line, durable=True))
                except OSError as error:
                    path = str(self.folder / RESULTS)
                    raise JournalError(
                        f"a result cannot be written to {path!r}: {error.strerror}"
                    ) from error

    def read(self) -> dict[str, Result]:
        """Return the results by key; of several lines for one exercise the last counts."""
        return {result.key: result for result in read_results(self.folder)}


def read_results(folder: Path) -> tuple[Result, ...]:
    """Read every result of a run, sorted by exercise and repeat, the last for each.

    Raises:
        UsageError: If the folder has no run.
        JournalError: If a line is damaged.
    """
    read_run(folder)
    path = folder / RESULTS
    found: dict[str, Result] = {}
    for number, line in enumerate(whole_lines(path), 1):
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
            f"{str(folder)!r} holds no run of a benchmark", hint=_NO_RUN_HINT
        ) from error


@asynccontextmanager
async def open_store(folder: Path, asked: Mapping[str, Any]) -> AsyncGenerator[ResultStore]:
    """Start or resume a run, with exclusive access.

    All values of `asked` must be equal to resume a run, except for `order`.

    Raises:
        UsageError: If the folder has a run with another request, or is in use.
    """
    async with AsyncExitStack() as stack:
        try:
            await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
            await stack.enter_async_context(hold(folder))
            _begin(folder, asked)
            file = stack.enter_context(closing(JsonlFile(folder / RESULTS)))
        except OSError as error:
            raise UsageError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
        yield ResultStore(folder, file)


def _begin(folder: Path, asked: Mapping[str, Any]) -> None:
    path = folder / RUN
    if path.exists():
        before = read_run(folder)
        for name in asked:
            if name != "order" and before.get(name) != asked[name]:
                raise UsageError(
                    f"{str(folder)!r} is a run with {name} {before.get(name)!r}, "
                    f"not {asked[name]!r}",
                    hint="name another folder with --out, or ask for the same again to go on",
                )
    elif any(entry.name != _LOCK for entry in folder.iterdir()):
        raise UsageError(
            f"{str(folder)!r} is not empty and holds no run", hint="name another folder with --out"
        )
    else:
        write_json(path, asked)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file so that readers and crashes see all of it or nothing."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that readers and crashes see either the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    draft.write_bytes(content)
    draft.chmod(mode)
    draft.replace(path)
