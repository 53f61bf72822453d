"""Recording and replay of whole runs: equal requests get equal answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from assay.contracts.errors import BudgetExceededError, ModelRefusedError, ModelUnavailableError
from assay.contracts.messages import ModelFacts, Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.message_json import (
    build_failure,
    failure_to_json,
    key_of,
    reply_to_json,
    request_to_json,
)
from assay.models.recording import Answer, Recording, RecordingFile

Matching = Literal["strict", "lenient"]
"""Strict: only answers recorded for this exact request. Lenient: the next recorded answer."""

_SHOWN: Final = 40
_MISSING: Final = object()


class RecordingModel:
    """A model whose answers and failures are recorded as they come.

    Use it as the outermost wrapper, so that a replay returns what its caller saw.
    """

    def __init__(self, model: Model, file: RecordingFile) -> None:
        self._model = model
        self._file = file

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def facts(self) -> ModelFacts:
        return self._model.facts

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
    """Returns the answers of a recording, with the name and facts of the recorded model.

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
    def facts(self) -> ModelFacts:
        return self._recording.facts

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
        told = _times(fields, recorded) or _nearest_difference(fields, recorded)
        return ModelRefusedError(
            f"request {place} is not in the recording of {self.name!r}: {told}",
            hint="record the run again, or replay leniently to take answers in their order",
        )


def _times(fields: Mapping[str, Any], recorded: tuple[Answer, ...]) -> str:
    count = sum(answer.key == key_of(fields) for answer in recorded)
    return f"it was recorded {count} times and asked for once more" if count else ""


def _nearest_difference(fields: Mapping[str, Any], recorded: tuple[Answer, ...]) -> str:
    now = dict(_leaves(fields))
    found = (_difference(now, answer) for answer in recorded)
    # Of those with equally few differences, the one with the longest common part.
    nearest = min(found, key=lambda one: (one.count, -one.same_until))
    return nearest.told


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    count: int
    same_until: int
    told: str


def _difference(now: Mapping[str, object], answer: Answer) -> _Difference:
    was = dict(_leaves(answer.request))
    names = dict.fromkeys((*now, *was))
    places = [name for name in names if now.get(name, _MISSING) != was.get(name, _MISSING)]
    old, new = was.get(places[0], _MISSING), now.get(places[0], _MISSING)
    same_until = _common_prefix(old, new)
    told = (
        f"nearest is request {answer.asked}, where {places[0]} is "
        f"{_shown(old, same_until)} instead of {_shown(new, same_until)}"
    )
    return _Difference(count=len(places), same_until=same_until, told=told)


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
