"""Recording and replay of whole runs: equal requests get equal answers.

A recording is a file with one line of JSON for the model, then one for each answer.
"""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.contracts.errors import (
    BudgetExceededError,
    ModelRefusedError,
    ModelUnavailableError,
    UsageError,
)
from assay.contracts.messages import ModelInfo, Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text
from assay.files import JsonlFile, json_line
from assay.models.message_json import (
    FailureKind,
    ModelFailure,
    build_failure,
    failure_to_json,
    info_from_json,
    info_to_json,
    key_of,
    reply_from_json,
    reply_to_json,
    request_to_json,
)
from assay.models.model_bases import WrappedModel

FORMAT: Final = 1
"""Increased when older readers would misunderstand; new names alone do not increase it."""
_FILE_NAME: Final = "recording.jsonl"
Matching = Literal["strict", "lenient"]
"""Strict: only answers recorded for this exact request. Lenient: the next recorded answer."""
_SHOWN: Final = 40
_MISSING: Final = object()


class _Lenient(BaseModel):
    # A later version may write more than this one knows.
    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class _Header(_Lenient):
    assay_recording: int
    model: str
    facts: dict[str, Any]
    """The properties of the model."""


class _Failure(_Lenient):
    kind: FailureKind
    message: str
    hint: str = ""
    retry_after_s: float | None = None
    not_charged: bool = False


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
    info: ModelInfo
    answers: tuple[Answer, ...]


class RecordingFile:
    """An open recording that accepts answers."""

    def __init__(self, file: JsonlFile, so_far: tuple[Answer, ...]) -> None:
        self._file = file
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
        line = json_line(fields)

        def write() -> None:
            self._file.append(line, durable=True)

        # A partial line would be worse than a short wait for the disk.
        with anyio.CancelScope(shield=True):
            async with self._writing:
                try:
                    await anyio.to_thread.run_sync(write)
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
    path: Path, *, model: str, info: ModelInfo
) -> AsyncGenerator[RecordingFile]:
    """Start or continue a recording of one model.

    Raises:
        UsageError: If the file is not a recording, or belongs to another model.
    """
    path = file_of(path)
    header = {"assay_recording": FORMAT, "model": model, "facts": info_to_json(info)}
    try:
        so_far = _read_start(path, json_line(header))
        # Prompts may contain private code, so other users cannot read it.
        file = JsonlFile(path.resolve())
    except OSError as error:
        raise UsageError(f"cannot record to {str(path)!r}: {error.strerror}") from error
    try:
        if so_far is not None and so_far.model != model:
            raise UsageError(
                f"{str(path)!r} is a recording of {so_far.model!r}, not of {model!r}",
                hint="record into another folder",
            )
        recording = RecordingFile(file, so_far.answers if so_far else ())
        if so_far is None:
            await recording.append(header)
        yield recording
    finally:
        file.close()


def _read_start(path: Path, header: bytes) -> Recording | None:
    """Read what was recorded before; None if nothing was. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return None
    if not path.is_file():
        raise UsageError(f"{str(path)!r} is not a file")
    content = path.read_bytes()
    if b"\n" in content:
        return _parse(content, path)
    if not header.startswith(content):
        # The file is not a recording, so it must not be truncated.
        raise UsageError(f"{str(path)!r} is not a recording of a model")
    return None


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
        return _parse(file.read_bytes(), file)
    except OSError as error:
        raise UsageError(f"cannot read {str(file)!r}: {error.strerror}") from error


def _parse(content: bytes, file: Path) -> Recording:
    """Parse the whole lines of a recording; a crash can truncate the last one."""
    first, *others = content.split(b"\n")[:-1] or [b""]
    try:
        header = _Header.model_validate(json.loads(first))
    except ValueError as error:
        raise UsageError(f"{str(file)!r} is not a recording of a model") from error
    if header.assay_recording != FORMAT:
        raise UsageError(
            f"{str(file)!r} has format {header.assay_recording} of recordings; this is {FORMAT}",
            hint="use the version of Assay that recorded it",
        )
    try:
        info = info_from_json(header.facts)
    except ValidationError as error:
        raise UsageError(f"{file}:1: these are no properties of a model") from error
    answers: list[Answer] = []
    for number, line in enumerate(others, 2):
        try:
            # Not with pydantic's parser, which rejects lone surrogates.
            answers.append(_to_answer(_Line.model_validate(json.loads(line))))
        except ValueError as error:
            raise UsageError(f"{file}:{number}: this line of the recording is damaged") from error
    answers.sort(key=lambda answer: answer.asked)
    return Recording(model=header.model, info=info, answers=tuple(answers))


def _to_answer(line: _Line) -> Answer:
    if line.error is not None:
        outcome = build_failure(**line.error.model_dump())
    else:
        outcome = reply_from_json(line.reply or {})
    return Answer(
        asked=line.asked,
        occurrence=line.occurrence,
        key=line.key,
        request=line.request,
        outcome=outcome,
    )


class RecordingModel(WrappedModel):
    """A model whose answers and failures are recorded as they come.

    Use it as the outermost wrapper, so that a replay returns what its caller saw.
    """

    def __init__(self, model: Model, file: RecordingFile) -> None:
        super().__init__(model)
        self._file = file

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        fields = request_to_json(request)
        key = key_of(fields)
        asked, occurrence = self._file.number(key)
        line: dict[str, Any] = {"asked": asked, "occurrence": occurrence, "key": key}
        line["request"] = fields
        try:
            reply = await self._model.reply(request, on_text=on_text)
        except (BudgetExceededError, ModelRefusedError, ModelUnavailableError) as error:
            await self._file.append({**line, "error": failure_to_json(error)})
            raise
        await self._file.append({**line, "reply": reply_to_json(reply)})
        return reply


class ReplayingModel:
    """Returns the answers of a recording, with the name and properties of the recorded model.

    Requests outside of the recording raise, or go to the fallback.
    """

    def __init__(
        self, recording: Recording, *, matching: Matching = "strict", fallback: Model | None = None
    ) -> None:
        self._recording = recording
        self._matching: Matching = matching
        self._fallback = fallback
        self._left = list(recording.answers)
        self.asked: list[Request] = []

    @property
    def name(self) -> str:
        return self._recording.model

    @property
    def info(self) -> ModelInfo:
        return self._recording.info

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        self.asked.append(request)
        answer = self._next(request_to_json(request))
        if answer is None and self._fallback is not None:
            return await self._fallback.reply(request, on_text=on_text)
        if answer is None:
            raise self._refusal(request_to_json(request))
        self._left.remove(answer)
        if not isinstance(answer.outcome, Reply):
            # A new exception each time, so that tracebacks do not accumulate.
            raise build_failure(**failure_to_json(answer.outcome)) from answer.outcome
        for piece in answer.outcome.message.text.splitlines(keepends=True):
            on_text(piece)
        return replace(answer.outcome)

    def _next(self, fields: Mapping[str, Any]) -> Answer | None:
        if self._matching == "lenient":
            return self._left[0] if self._left else None
        key = key_of(fields)
        same = (answer for answer in self._left if answer.key == key)
        return min(same, key=lambda answer: answer.occurrence, default=None)

    def _refusal(self, fields: Mapping[str, Any]) -> ModelRefusedError:
        place = len(self.asked)
        recorded = self._recording.answers
        if self._matching == "lenient" or not recorded:
            return ModelRefusedError(
                f"the recording of {self.name!r} has {len(recorded)} answers, "
                f"and request {place} came",
                hint="record the run again",
            )
        key = key_of(fields)
        times = sum(answer.key == key for answer in recorded)
        difference = (
            f"it was recorded {times} times and asked for once more"
            if times
            else _nearest_difference(fields, recorded)
        )
        return ModelRefusedError(
            f"request {place} is not in the recording of {self.name!r}: {difference}",
            hint="record the run again, or replay leniently to take answers in their order",
        )


def _nearest_difference(fields: Mapping[str, Any], recorded: tuple[Answer, ...]) -> str:
    """Describe the first difference to the recorded request that differs least."""
    now = dict(_leaves(fields))
    found: list[tuple[int, int, str]] = []
    for answer in recorded:
        was = dict(_leaves(answer.request))
        names = dict.fromkeys((*now, *was))
        places = [name for name in names if now.get(name, _MISSING) != was.get(name, _MISSING)]
        old, new = was.get(places[0], _MISSING), now.get(places[0], _MISSING)
        same_until = _common_prefix(old, new)
        described = (
            f"nearest is request {answer.asked}, where {places[0]} is "
            f"{_shown(old, same_until)} instead of {_shown(new, same_until)}"
        )
        found.append((len(places), -same_until, described))
    # Of those with equally few differences, the first one with the longest common part.
    return min(found, key=lambda one: one[:2])[2]


def _leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    match value:
        case dict():
            for name, inner in value.items():  # pyright: ignore[reportUnknownVariableType] - JSON
                yield from _leaves(inner, f"{place}.{name}" if place else str(name))  # pyright: ignore[reportUnknownArgumentType]
        case list():
            for index, inner in enumerate(value):  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - JSON
                yield from _leaves(inner, f"{place}[{index}]")  # pyright: ignore[reportUnknownArgumentType]
        case _:
            yield place, value


def _common_prefix(was: object, now: object) -> int:
    if not (isinstance(was, str) and isinstance(now, str)):
        return 0
    pairs = enumerate(zip(was, now, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(was), len(now)))


def _shown(value: object, start: int) -> str:
    if value is _MISSING:
        return "nothing"
    if not isinstance(value, str):
        return repr(value)
    begin = max(start - _SHOWN // 2, 0)
    end = begin + _SHOWN
    cut = value[begin:end]
    return f"{'…' if begin else ''}{cut!r}{'…' if end < len(value) else ''}"
