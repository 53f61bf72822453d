"""Scripted model: replies from a file, for demonstrations and tests without a model.

The format, JSON lines, is described in docs/reference/scripted-model.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from assay.contracts.errors import ModelRefusedError, UsageError
from assay.contracts.messages import (
    Message,
    ModelFacts,
    Price,
    Reply,
    Request,
    StopReason,
    ToolCall,
    Usage,
)
from assay.contracts.ports import OnText, ignore_text
from assay.models.message_json import (
    FailureKind,
    build_failure,
    facts_from_json,
    facts_to_json,
)

_HINT: Final = "see docs/reference/scripted-model.md"
_LONGEST_DELAY_S: Final = 60.0
_FACTS: Final = ModelFacts(
    context_tokens=1_000_000,
    max_output_tokens=100_000,
    tool_calls=True,
    price=Price(input_usd=0.0, output_usd=0.0),
    cells_in_text=True,  # scripts are text that people write
)

Tokens = Annotated[int, Field(ge=0)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Call(_Line):
    name: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """A string is the model's text in place of an object."""
    id: str = ""


class _Usage(_Line):
    input_tokens: Tokens = 0
    cached_input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    cost_usd: Usd | None = None


class Said(_Line):
    """One line of a script: a reply, or a failure."""

    text: str = ""
    tool_calls: tuple[_Call, ...] = Field(default=(), strict=False)
    stop_reason: StopReason | None = Field(default=None, strict=False)
    usage: _Usage | None = None
    error: FailureKind | None = None
    message: str = ""
    """The message of the error."""
    retry_after_s: Annotated[float, Field(ge=0)] | None = None
    delay_s: Annotated[float, Field(ge=0, le=_LONGEST_DELAY_S)] = 0.0
    repeat: bool = False
    """Repeat this line without end; only the last line may."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> "Said":
        if self.error is None:
            if not (self.text or self.tool_calls):
                raise ValueError("a reply needs text, tool_calls or error")
            if self.message or self.retry_after_s is not None:
                raise ValueError("message and retry_after_s belong to an error")
        elif self.tool_calls or self.stop_reason or self.usage:
            raise ValueError("an error has no tool_calls, stop_reason or usage")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The lines of a script."""

    said: tuple[Said, ...]
    facts: ModelFacts = _FACTS


class ScriptedModel:
    """Returns the lines of a script in order, and stores the requests."""

    def __init__(self, script: Script, *, name: str = "scripted", answered: int = 0) -> None:
        self._script = script
        self._name = name
        self._answered = answered
        self.asked: list[Request] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def facts(self) -> ModelFacts:
        return self._script.facts

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        said = self._next()
        self.asked.append(request)
        if said.delay_s:
            await anyio.sleep(said.delay_s)
        # An error with a text is an answer that breaks off.
        for piece in said.text.splitlines(keepends=True):
            on_text(piece)
        if said.error is not None:
            message = said.message or f"the script says that the model is {said.error}"
            raise build_failure(said.error, message, retry_after_s=said.retry_after_s)
        return self._reply(said)

    def _next(self) -> Said:
        said, place = self._script.said, self._answered + len(self.asked)
        if place < len(said):
            return said[place]
        if said and said[-1].repeat:
            return said[-1]
        raise ModelRefusedError(
            f"{self._name} has {len(said)} replies, and a request more came",
            hint='add a line to the script, or "repeat": true to its last line',
        )

    def _reply(self, said: Said) -> Reply:
        calls = tuple(
            _tool_call(call, f"call_{len(self.asked)}_{place}")
            for place, call in enumerate(said.tool_calls, 1)
        )
        usage = Usage(**said.usage.model_dump(exclude_none=True)) if said.usage else Usage()
        return Reply(
            message=Message(role="assistant", text=said.text, tool_calls=calls),
            stop_reason=said.stop_reason or _usual_end(calls),
            usage=replace(usage, calls=1),
            model=self._name,
        )


def _tool_call(call: _Call, fallback_id: str) -> ToolCall:
    written = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return ToolCall(
        id=call.id or fallback_id,
        name=call.name,
        arguments=None if isinstance(call.arguments, str) else call.arguments,
        written=written,
    )


def _usual_end(calls: Sequence[ToolCall]) -> StopReason:
    return StopReason.TOOL_CALLS if calls else StopReason.ENDED


def load_script(path: Path) -> Script:
    """Read a script.

    Raises:
        UsageError: If the file does not exist, or a line is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"cannot read the script {str(path)!r}: {reason}", hint=_HINT) from error
    facts = _FACTS
    said: list[Said] = []
    # Not `splitlines`: JSON may contain other kinds of line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = _fields(line, f"{path}:{number}")
        if "facts" in fields and not said:
            facts = _read_facts(fields["facts"], f"{path}:{number}")
            continue
        if said and said[-1].repeat:
            raise UsageError(
                f"{path}:{number}: nothing comes after a line that repeats", hint=_HINT
            )
        said.append(_read_said(fields, f"{path}:{number}"))
    if not said:
        raise UsageError(f"the script {str(path)!r} holds no reply", hint=_HINT)
    return Script(said=tuple(said), facts=facts)


def _fields(line: str, place: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{place}: not JSON: {error.msg.lower()} at column {error.colno}", hint=_HINT
        ) from error
    if not isinstance(fields, dict):
        raise UsageError(f"{place}: a line has to be a JSON object", hint=_HINT)
    return fields  # pyright: ignore[reportUnknownVariableType] - JSON


def _read_said(fields: Mapping[str, Any], place: str) -> Said:
    try:
        return Said.model_validate(fields)
    except ValidationError as error:
        raise _explained(error, place) from error


def _read_facts(told: object, place: str) -> ModelFacts:
    usual = facts_to_json(_FACTS)
    if not isinstance(told, dict) or not usual.keys() >= told.keys():
        raise UsageError(f"{place}: no facts of a model", hint=f"they are: {', '.join(usual)}")
    try:
        return facts_from_json(usual | told)
    except ValidationError as error:
        raise _explained(error, place) from error


def _explained(error: ValidationError, place: str) -> UsageError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(Said.model_fields)
        return UsageError(f"{place}: there is no {name!r}", hint=f"a line may have: {known}")
    said = first["msg"].removeprefix("Value error, ")
    told = said[:1].lower() + said[1:]
    return UsageError(f"{place}: {name}: {told}" if name else f"{place}: {told}", hint=_HINT)
