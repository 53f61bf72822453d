"""File format of a recording: one line of JSON for the model, then one for each answer.

A line is written and made durable before the caller receives the answer. A crash can truncate only
the last line, which is then dropped.
"""

import json
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.contracts.errors import ModelUnavailableError, UsageError
from assay.contracts.messages import ModelFacts, Reply
from assay.models.message_json import (
    FailureKind,
    ModelFailure,
    build_failure,
    facts_from_json,
    facts_to_json,
    line_of,
    reply_from_json,
)

FORMAT: Final = 1
"""Increased when older readers would misunderstand; new names alone do not increase it."""
_FILE_NAME: Final = "recording.jsonl"


class _Lenient(BaseModel):
    # A later version may write more than this one knows.
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class _Header(_Lenient):
    assay_recording: int
    model: str
    facts: dict[str, Any]


class _Failure(_Lenient):
    kind: FailureKind
    message: str
    hint: str = ""
    retry_after_s: float | None = None
    turned_away: bool = False


class _Line(_Lenient):
    asked: int
    occurrence: int
    key: str
    request: dict[str, Any]
    reply: dict[str, Any] | None = None
    error: _Failure | None = Field(default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request and its result."""

    asked: int
    """Its position among all requests of the recording, from 1."""
    occurrence: int
    """The number of this request among equal ones so far, from 1."""
    key: str
    request: dict[str, Any]
    outcome: Reply | ModelFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The contents of a file in the order of the requests."""

    model: str
    facts: ModelFacts
    answers: tuple[Answer, ...]


class RecordingFile:
    """An open recording that accepts answers."""

    def __init__(self, descriptor: int, so_far: tuple[Answer, ...]) -> None:
        self._descriptor = descriptor
        self._writing = anyio.Lock()
        self._asked = max((answer.asked for answer in so_far), default=0)
        self._occurrences: dict[str, int] = {}
        for answer in so_far:
            self._occurrences[answer.key] = max(
                answer.occurrence, self._occurrences.get(answer.key, 0)
            )

    def number(self, key: str) -> tuple[int, int]:
        """Count a request: its position among all, and among equal ones."""
        self._asked += 1
        self._occurrences[key] = self._occurrences.get(key, 0) + 1
        return self._asked, self._occurrences[key]

    async def append(self, fields: dict[str, Any]) -> None:
        """Append one line; it is durable when this returns."""
        # A partial line would be worse than a short wait for the disk.
        with anyio.CancelScope(shield=True):
            async with self._writing:
                try:
                    await anyio.to_thread.run_sync(_write, self._descriptor, line_of(fields))
                except OSError as error:
                    raise ModelUnavailableError(
                        f"the answer could not be recorded: {error.strerror}",
                        hint="make room on the disk, or do not record",
                    ) from error


def file_of(path: Path) -> Path:
    """Return the path of the recording in a file or folder argument."""
    return path if path.suffix == ".jsonl" or path.is_file() else path / _FILE_NAME


@asynccontextmanager
async def open_recording(
    path: Path, *, model: str, facts: ModelFacts
) -> AsyncGenerator[RecordingFile]:
    """Start or continue a recording of one model.

    Raises:
        UsageError: If the file is not a recording, or belongs to another model.
    """
    file = file_of(path)
    header = {"assay_recording": FORMAT, "model": model, "facts": facts_to_json(facts)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Prompts may contain private code, so other users must not read it.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot record to {str(file)!r}: {error.strerror}") from error
    try:
        so_far = _recover(descriptor, file, line_of(header))
        if so_far is not None and so_far.model != model:
            raise UsageError(
                f"{str(file)!r} is a recording of {so_far.model!r}, not of {model!r}",
                hint="record into another folder",
            )
        recording = RecordingFile(descriptor, so_far.answers if so_far else ())
        if so_far is None:
            await recording.append(header)
        yield recording
    finally:
        os.close(descriptor)


def _recover(descriptor: int, file: Path, header: bytes) -> Recording | None:
    """Read the file and drop an incomplete last line; None if nothing was recorded."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UsageError(f"{str(file)!r} is not a file")
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if not whole and not header.startswith(content):
        # The file is not a recording, so it must not be truncated.
        raise UsageError(f"{str(file)!r} is not a recording of a model")
    recording = _parse(whole, file) if whole else None
    os.truncate(descriptor, len(whole))
    return recording


def read_recording(path: Path) -> Recording:
    """Read a whole recording.

    Raises:
        UsageError: If it does not exist, or is invalid.
    """
    file = file_of(path)
    if not file.is_file():
        raise UsageError(
            f"there is no recording {str(file)!r}",
            hint="give a folder or file that a run was recorded to",
        )
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}") from error
    return _parse(content[: content.rfind(b"\n") + 1], file)


def _parse(content: bytes, file: Path) -> Recording:
    lines = _json_lines(content, file)
    try:
        _, first = next(lines)
        header = _Header.model_validate(first)
    except (StopIteration, ValidationError) as error:
        raise UsageError(f"{str(file)!r} is not a recording of a model") from error
    if header.assay_recording != FORMAT:
        raise UsageError(
            f"{str(file)!r} has format {header.assay_recording} of recordings; this is {FORMAT}",
            hint="use the version of Assay that recorded it",
        )
    try:
        facts = facts_from_json(header.facts)
    except ValidationError as error:
        raise UsageError(f"{file}:1: these are no facts of a model") from error
    answers = (_answer(fields, f"{file}:{number}") for number, fields in lines)
    in_order = sorted(answers, key=lambda answer: answer.asked)
    return Recording(model=header.model, facts=facts, answers=tuple(in_order))


def _json_lines(content: bytes, file: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise UsageError(f"{file}:{number}: this line of the recording is damaged") from error


def _answer(fields: object, place: str) -> Answer:
    try:
        line = _Line.model_validate(fields)
        if line.error is not None:
            told = line.error
            outcome = build_failure(
                told.kind,
                told.message,
                hint=told.hint,
                retry_after_s=told.retry_after_s,
                turned_away=told.turned_away,
            )
        else:
            outcome = reply_from_json(line.reply or {})
    except ValidationError as error:
        raise UsageError(f"{place}: this line of the recording is damaged") from error
    return Answer(
        asked=line.asked,
        occurrence=line.occurrence,
        key=line.key,
        request=line.request,
        outcome=outcome,
    )


def _write(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
    os.fsync(descriptor)
