"""Scripted model: replies from a file, for demonstrations and tests without a model.

The format, JSON lines, is described in docs/reference/scripted-model.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from assay.contracts.errors import ModelRefusedError, UsageError
from assay.contracts.messages import (
    Message,
    ModelInfo,
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
    info_from_json,
    info_to_json,
)

_HINT: Final = "see docs/reference/scripted-model.md"
_LONGEST_DELAY_S: Final = 60.0
_INFO: Final = ModelInfo(
    context_tokens=1_000_000,
    max_output_tokens=100_000,
    tool_calls=True,
    price=Price(input_usd=0.0, output_usd=0.0),
    cells_in_text=True,  # scripts are text that people write
)

Tokens = Annotated[int, Field(ge=0)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Call(_Strict):
    name: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """A string is the model's text in place of an object."""
    id: str = ""


class _Usage(_Strict):
    input_tokens: Tokens = 0
    cached_input_tokens: Tokens = 0
    output_tokens: Tokens = 0
    reasoning_tokens: Tokens = 0
    cost_usd: Usd | None = None


class ScriptLine(_Strict):
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
    def _says_one_thing(self) -> "ScriptLine":
        if self.error is None:
            if not (self.text or self.tool_calls or self.stop_reason):
                raise ValueError("a reply needs text, tool_calls, stop_reason or error")
            if self.message or self.retry_after_s is not None:
                raise ValueError("message and retry_after_s belong to an error")
        elif self.tool_calls or self.stop_reason or self.usage:
            raise ValueError("an error has no tool_calls, stop_reason or usage")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The lines of a script."""

    lines: tuple[ScriptLine, ...]
    info: ModelInfo = _INFO


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
    def info(self) -> ModelInfo:
        return self._script.info

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        line = self._next()
        self.asked.append(request)
        if line.delay_s:
            await anyio.sleep(line.delay_s)
        # An error with a text is an answer that breaks off.
        for piece in line.text.splitlines(keepends=True):
            on_text(piece)
        if line.error is not None:
            message = line.message or f"the script says that the model is {line.error}"
            raise build_failure(line.error, message, retry_after_s=line.retry_after_s)
        calls = tuple(
            _tool_call(call, f"call_{len(self.asked)}_{number}")
            for number, call in enumerate(line.tool_calls, 1)
        )
        usage = Usage(**line.usage.model_dump(exclude_none=True)) if line.usage else Usage()
        usual_end = StopReason.TOOL_CALLS if calls else StopReason.ENDED
        return Reply(
            message=Message(role="assistant", text=line.text, tool_calls=calls),
            stop_reason=line.stop_reason or usual_end,
            usage=replace(usage, calls=1),
            model=self._name,
        )

    def _next(self) -> ScriptLine:
        lines, position = self._script.lines, self._answered + len(self.asked)
        if position < len(lines):
            return lines[position]
        if lines and lines[-1].repeat:
            return lines[-1]
        raise ModelRefusedError(
            f"{self._name} has {len(lines)} replies, and a request more came",
            hint='add a line to the script, or "repeat": true to its last line',
        )


def _tool_call(call: _Call, fallback_id: str) -> ToolCall:
    written = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return ToolCall(
        id=call.id or fallback_id,
        name=call.name,
        arguments=None if isinstance(call.arguments, str) else call.arguments,
        written=written,
    )


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
    info = _INFO
    lines: list[ScriptLine] = []
    # Not `splitlines`: JSON may contain other kinds of line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"{path}:{number}"
        fields = _fields(line, place)
        try:
            if "facts" in fields and not lines:
                info = _read_info(fields["facts"], place)
                continue
            if lines and lines[-1].repeat:
                raise UsageError(f"{place}: nothing comes after a line that repeats", hint=_HINT)
            lines.append(ScriptLine.model_validate(fields))
        except ValidationError as error:
            raise _explained(error, place) from error
    if not lines:
        raise UsageError(f"the script {str(path)!r} holds no reply", hint=_HINT)
    return Script(lines=tuple(lines), info=info)


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


def _read_info(given: object, place: str) -> ModelInfo:
    usual = info_to_json(_INFO)
    if not isinstance(given, dict) or not usual.keys() >= given.keys():
        raise UsageError(f"{place}: no properties of a model", hint=f"they are: {', '.join(usual)}")
    return info_from_json(usual | given)


def _explained(error: ValidationError, place: str) -> UsageError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(ScriptLine.model_fields)
        return UsageError(f"{place}: there is no {name!r}", hint=f"a line may have: {known}")
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return UsageError(f"{place}: {name}: {message}" if name else f"{place}: {message}", hint=_HINT)
