"""`POST /v1/chat/completions`: OpenAI's API for chat front ends.

A turn is one text, which grows during the turn.
"""

import hashlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import anyio
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from assay.contracts.chat import CellEnded, Turn
from assay.contracts.messages import Usage
from assay.server.api.dependencies import Server, WriteAccess
from assay.server.api.problems import (
    TurnFailedError,
    documented_openai,
    for_admin,
    openai_error,
    request_id,
    turn_fault,
)
from assay.server.api.schemas import text_of, writable
from assay.server.api.sse import EVENT
from assay.server.app_state import ServerState
from assay.server.db.models import Caller
from assay.server.errors import RequestRejectedError
from assay.server.services.chat_service import TurnHandle, difference
from assay.server.services.shared_resources import check_usable

_SHOWN_CHARS: Final = 4000
_FENCE: Final = "```"


class Telling:
    """Converts the events of a turn to pieces of its text, in order and each once.

    The model's text is streamed up to its first block of code. Whether that code runs is known only
    at the end of the step, and it decides the format of the step.
    """

    def __init__(self) -> None:
        self._before = ""
        """Separator between this step and the previous one."""
        self._heard = ""
        self._told = ""
        """Text of the current step."""

    def hear(self, event: dict[str, Any]) -> str:
        """Return the text to send now; often none."""
        if event["kind"] == "reply_delta":
            self._heard += text_of(event["text"])
            return self._tell(_certain(self._heard))
        whole = _step(event)
        if not whole:
            return ""
        if not whole.startswith(self._told):
            self._end_step()
        piece = self._tell(whole)
        self._end_step()
        return piece

    def _tell(self, so_far: str) -> str:
        piece = so_far[len(self._told) :]
        if not piece:
            return ""
        if not self._told:
            piece = self._before + piece
        self._told = so_far
        return piece

    def _end_step(self) -> None:
        self._before = "\n\n" if self._told else self._before
        self._heard = self._told = ""


def _certain(heard: str) -> str:
    """Return the part of the model's text that no later text can change."""
    words = heard.lstrip().partition(_FENCE)[0]
    return words.rstrip("`").rstrip()


def whole_text(turn: Turn) -> str:
    """Return the text of a turn, equal to its streamed pieces."""
    pieces: list[str] = []
    thoughts, remarks = iter(turn.thoughts), iter(turn.remarks)
    for step in turn.steps:
        if isinstance(step, CellEnded):
            pieces.append(_begun(next(thoughts, ""), step.code, next(remarks, "")))
            pieces.append(_fenced("text", step.observation))
        else:
            pieces.append(_used(step.thought, step.tool, step.answer))
    pieces.append(text_of(turn.answer))
    return "\n\n".join(piece for piece in pieces if piece)


def _step(event: dict[str, Any]) -> str:
    match event["kind"]:
        case "cell_started":
            return _begun(event["thought"], event["code"], event.get("remark", ""))
        case "cell_ended":
            return _fenced("text", event["observation"])
        case "tool_used":
            return _used(event["thought"], event["tool"], event["answer"])
        case "turn_ended":
            return text_of(event["text"])
        case _:
            return ""


def _begun(thought: str, code: str, remark: str) -> str:
    parts = (thought, _fenced("python", code), remark)
    return text_of("\n\n".join(part for part in parts if part))


def _used(thought: str, tool: str, answer: str) -> str:
    told = f"*Used `{tool}`:*\n\n{_fenced('text', answer)}"
    return text_of(f"{thought}\n\n{told}" if thought else told)


def _fenced(language: str, text: str) -> str:
    if not text.strip():
        return ""
    text = text_of(text.rstrip())
    if len(text) > _SHOWN_CHARS:
        text = text[:_SHOWN_CHARS] + "\n…"
    fence = _FENCE
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


router = APIRouter(prefix="/v1/chat", tags=["chat"])

_OURS: Final = "assay"
Text = Annotated[str, AfterValidator(writable), Field(max_length=500_000)]


class Part(BaseModel):
    """A part of a message; only text is read."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["text"])
    text: Text = ""


class ChatMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[Part] | None = None

    def words(self) -> str:
        """Return the text of the message."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text).strip()
        return (self.content or "").strip()


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None


class CompletionRequest(BaseModel):
    """The messages of a session so far.

    Sampling settings such as `temperature` are accepted and ignored. Assay rejects unsupported
    parameters that would change the answer.
    """

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, AfterValidator(writable)] = Field(
        default=_OURS, max_length=200, examples=["assay"]
    )
    messages: list[ChatMessage] = Field(
        min_length=1, max_length=2000, examples=[[{"role": "user", "content": "What is 2 ** 64?"}]]
    )
    stream: bool | None = False
    stream_options: StreamOptions | None = None


class Choice(BaseModel):
    """The one answer."""

    index: int = 0
    message: dict[str, str] = Field(examples=[{"role": "assistant", "content": "It is 2."}])
    finish_reason: Literal["stop", "length"]


class CompletionUsage(BaseModel):
    """Tokens of all replies in the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """An answer in the format of OpenAI's API."""

    id: str = Field(examples=["chatcmpl-5f1c9a"])
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    session_id: str = Field(
        description="In which session it went on", examples=["brisk-otter-4f2a"]
    )


def check_supported(asked: CompletionRequest) -> None:
    """Reject parameters that would otherwise be ignored silently.

    Raises:
        RequestRejectedError: With the parameter, as OpenAI's API names it.
    """
    for place, message in enumerate(asked.messages):
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type != "text":
                raise _unsupported(
                    f"messages[{place}].content[{number}].type",
                    f"content of type {part.type[:40]!r} is not supported; send text",
                )
    given = asked.model_extra or {}
    for name, is_fine in _FINE.items():
        if name in given and given[name] is not None and not is_fine(given[name]):
            raise _unsupported(name, f"this value of `{name}` is not supported")


def _unsupported(param: str, message: str) -> RequestRejectedError:
    return RequestRejectedError(message, why="unsupported", param=param)


_FINE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "n": lambda value: value == 1,
    "tool_choice": lambda value: value in ("auto", "none"),
    "function_call": lambda value: value in ("auto", "none"),
    "response_format": lambda value: isinstance(value, dict) and value == {"type": "text"},
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "logit_bias": lambda value: value == {},
    "modalities": lambda value: value == ["text"],
    "audio": lambda _: False,
    "prediction": lambda _: False,
    "web_search_options": lambda _: False,
}
"""Parameters that change the answer, with the values of each that change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Going:
    """A running turn for a front end."""

    house: ServerState
    caller: Caller
    asked: CompletionRequest
    session_id: str
    begun: TurnHandle
    id: str
    said: tuple[tuple[str, str], ...]
    """The messages, including the last one."""

    @property
    def with_usage(self) -> bool:
        options = self.asked.stream_options
        return options is not None and bool(options.include_usage)

    async def remember(self, answer: str) -> None:
        """Store the digest that finds this session for the next message."""
        digest = _digest((*self.said, ("assistant", answer.strip())))
        await self.house.store.put_thread(self.caller.user, digest, self.session_id)


@router.post(
    "/completions",
    response_model=Completion,
    responses={
        **documented_openai(404, 409, 500, 502),
        200: {"content": {"text/event-stream": {"schema": EVENT}}},
    },
)
async def complete(
    request: Request, house: Server, caller: WriteAccess, asked: CompletionRequest
) -> Completion | StreamingResponse:
    """Answer the last message; the text includes cells and their output."""
    check_supported(asked)
    instructions = "\n\n".join(
        message.words()
        for message in asked.messages
        if message.role in {"system", "developer"} and message.words()
    )
    said = tuple(
        (message.role, message.words())
        for message in asked.messages
        if message.role in {"user", "assistant"} and message.words()
    )
    async with house.quotas.reserving_turn(caller, said[-1][1] if said else "") as hold:
        session_id, message = await _session(request, house, caller, asked, said)
        begun = await house.conversations.begin_turn(
            caller, session_id, message, hold, instructions=instructions
        )
    going = _Going(
        house=house,
        caller=caller,
        asked=asked,
        session_id=session_id,
        begun=begun,
        id=f"chatcmpl-{secrets.token_hex(8)}",
        said=said,
    )
    if asked.stream:
        admin = for_admin(request)
        return StreamingResponse(_chunks(going, for_admin=admin), media_type="text/event-stream")
    turn = await begun.finish()
    if turn.status == "failed":
        raise TurnFailedError(turn.error, session_id, turn.number)
    answer = whole_text(turn)
    await going.remember(answer)
    usage = difference(begun.before, begun.conversation.dialogue.history.usage)
    return Completion(
        id=going.id,
        created=int(time.time()),
        model=asked.model,
        choices=[
            Choice(message={"role": "assistant", "content": answer}, finish_reason=_reason(turn))
        ],
        usage=_usage_shape(usage),
        session_id=session_id,
    )


async def _session(
    request: Request,
    house: ServerState,
    caller: Caller,
    asked: CompletionRequest,
    said: tuple[tuple[str, str], ...],
) -> tuple[str, str]:
    """Return the session to continue, and the new message."""
    before, message = said[:-1], said[-1][1] if said else "Hello."
    found = await house.store.thread(caller.user, _digest(before)) if before else None
    if found is not None and await house.store.session(caller.user, found):
        return found, message
    name = asked.model.removeprefix(_OURS).removeprefix(":")
    model = await check_usable(name, caller, house.settings)
    row = await house.conversations.create(caller.user, model=model)
    await house.audit(caller, "session.create", row.id, request=request_id(request))
    if before:
        told = "\n\n".join(f"{role}: {words}" for role, words in before)
        message = f"This was said before, elsewhere:\n\n{told}\n\nNow:\n\n{message}"
    return row.id, message


def _usage_shape(usage: Usage) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


async def _chunks(going: _Going, *, for_admin: bool) -> AsyncGenerator[str]:
    """Stream the answer: text as it arrives, cells when they start, output when they end."""
    telling, sent = Telling(), ""
    ours = False
    yield _chunk(going, {"role": "assistant", "content": ""})
    turn_number, conversations = going.begun.turn, going.house.conversations
    async with (
        _watched(going) as watched,
        conversations.feed(going.caller.user, going.session_id) as feed,
        aclosing(feed.listen(0)) as heard,
    ):
        async for told in heard:
            if told is None:
                continue
            event: dict[str, Any] = json.loads(told.data)
            # Transient text events do not name their turn.
            ours = event.get("turn", turn_number if ours else 0) == turn_number
            if not ours:
                continue
            if event.get("status") == "failed":
                break
            if piece := telling.hear(event):
                sent += piece
                yield _chunk(going, {"content": piece})
            if told.kind == "turn_ended":
                break
    if watched.cancel_called:
        return
    turn = await going.begun.finish()
    if turn.status == "failed":
        # The status was sent already, so the error is an event, as in OpenAI's API.
        failed = TurnFailedError(turn.error, going.session_id, turn.number)
        error = openai_error(turn_fault(failed, for_admin=for_admin))
        yield f"data: {json.dumps(error)}\n\n"
        return
    await going.remember(sent)
    yield _chunk(going, {}, finish=_reason(turn))
    if going.with_usage:
        begun = going.begun
        usage = difference(begun.before, begun.conversation.dialogue.history.usage)
        yield _chunk(going, None, usage=_usage_shape(usage))
    yield "data: [DONE]\n\n"


@asynccontextmanager
async def _watched(going: _Going) -> AsyncGenerator[anyio.CancelScope]:
    """Return a scope that is cancelled when the caller loses access."""
    with going.house.streams.opened(going.caller) as scope:
        yield scope


def _chunk(
    going: _Going,
    delta: dict[str, str] | None,
    *,
    finish: str | None = None,
    usage: CompletionUsage | None = None,
) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    fields: dict[str, Any] = {
        "id": going.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": going.asked.model,
        "choices": [] if delta is None else [choice],
    }
    if going.with_usage:
        fields["usage"] = usage.model_dump() if usage else None
    return f"data: {json.dumps(fields)}\n\n"


def _reason(turn: Turn) -> Literal["stop", "length"]:
    return "length" if turn.status == "out_of_steps" else "stop"


def _digest(said: tuple[tuple[str, str], ...]) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
