"""`POST /v1/chat/completions`: OpenAI's API for chat front ends.

A turn is one text, which grows during the turn.
"""

import hashlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

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
from assay.server.services.chat_service import TurnHandle
from assay.server.services.shared_resources import check_usable

_SHOWN_CHARS: Final = 4000
_FENCE: Final = "```"


class TurnText:
    """Converts the events of a turn to pieces of its text, in order and each once.

    The model's text is streamed up to its first block of code. Whether that code runs is known only
    at the end of the step, and it decides the format of the step.
    """

    def __init__(self) -> None:
        self._before = ""
        """Separator between this step and the previous one."""
        self._spoken = ""
        """Text of the model in the current step."""
        self._sent = ""
        """Text of the current step that was returned."""

    def add(self, event: dict[str, Any]) -> str:
        """Return the text to send now; often none."""
        if event["kind"] == "reply_delta":
            self._spoken += text_of(event["text"])
            # No later text can change this part.
            text = self._spoken.lstrip().partition(_FENCE)[0].rstrip("`").rstrip()
            return self._send(text)
        whole = _step(event)
        if not whole:
            return ""
        if not whole.startswith(self._sent):
            self._end_step()
        piece = self._send(whole)
        self._end_step()
        return piece

    def _send(self, so_far: str) -> str:
        piece = so_far[len(self._sent) :]
        if not piece:
            return ""
        if not self._sent:
            piece = self._before + piece
        self._sent = so_far
        return piece

    def _end_step(self) -> None:
        self._before = "\n\n" if self._sent else self._before
        self._spoken = self._sent = ""


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
    note = f"*Used `{tool}`:*\n\n{_fenced('text', answer)}"
    return text_of(f"{thought}\n\n{note}" if thought else note)


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
    for index, message in enumerate(asked.messages):
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type != "text":
                raise _unsupported(
                    f"messages[{index}].content[{number}].type",
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
class _Answer:
    """The answer to a request, while its turn is running."""

    server: ServerState
    caller: Caller
    asked: CompletionRequest
    turn: TurnHandle
    id: str
    messages: tuple[tuple[str, str], ...]
    """Role and text, including the last one."""

    @property
    def with_usage(self) -> bool:
        options = self.asked.stream_options
        return options is not None and bool(options.include_usage)

    async def remember(self, text: str) -> None:
        """Store the digest that finds this session for the next message."""
        digest = _digest((*self.messages, ("assistant", text.strip())))
        await self.server.store.put_thread(self.caller.user, digest, self.turn.session_id)


@router.post(
    "/completions",
    response_model=Completion,
    responses={
        **documented_openai(404, 409, 500, 502),
        200: {"content": {"text/event-stream": {"schema": EVENT}}},
    },
)
async def complete(
    request: Request, server: Server, caller: WriteAccess, asked: CompletionRequest
) -> Completion | StreamingResponse:
    """Answer the last message; the text includes cells and their output."""
    check_supported(asked)
    spoken = [(message.role, message.words()) for message in asked.messages if message.words()]
    messages = tuple(one for one in spoken if one[0] in {"user", "assistant"})
    before, message = messages[:-1], messages[-1][1] if messages else "Hello."
    session_id = await server.store.thread(caller.user, _digest(before)) if before else None
    if session_id is not None and await server.store.session(caller.user, session_id) is None:
        session_id = None
    model = ""
    if session_id is None:
        name = asked.model.removeprefix(_OURS).removeprefix(":")
        model = await check_usable(name, caller, server.settings)
        if before:
            earlier = "\n\n".join(f"{role}: {words}" for role, words in before)
            message = f"The conversation so far:\n\n{earlier}\n\nNow:\n\n{message}"
    handle = await server.chats.begin_turn(
        caller,
        message,
        session_id=session_id,
        model=model,
        instructions="\n\n".join(text for role, text in spoken if role in {"system", "developer"}),
        request_id=request_id(request),
    )
    answer = _Answer(
        server=server,
        caller=caller,
        asked=asked,
        turn=handle,
        id=f"chatcmpl-{secrets.token_hex(8)}",
        messages=messages,
    )
    if asked.stream:
        chunks = _chunks(answer, for_admin=for_admin(request))
        return StreamingResponse(chunks, media_type="text/event-stream")
    turn, usage = await handle.finish()
    if turn.status == "failed":
        raise TurnFailedError(turn.error, handle.session_id, turn.number)
    text = whole_text(turn)
    await answer.remember(text)
    return Completion(
        id=answer.id,
        created=int(time.time()),
        model=asked.model,
        choices=[
            Choice(message={"role": "assistant", "content": text}, finish_reason=_reason(turn))
        ],
        usage=_usage_shape(usage),
        session_id=handle.session_id,
    )


def _usage_shape(usage: Usage) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


async def _chunks(answer: _Answer, *, for_admin: bool) -> AsyncGenerator[str]:
    """Stream the answer: text as it arrives, cells when they start, output when they end."""
    text, sent = TurnText(), ""
    ours = False
    yield _chunk(answer, {"role": "assistant", "content": ""})
    server, number = answer.server, answer.turn.number
    with server.subscriptions.opened(answer.caller) as access:
        async with (
            server.chats.stream(answer.caller.user, answer.turn.session_id) as stream,
            aclosing(stream.listen(0)) as events,
        ):
            async for streamed in events:
                if streamed is None:
                    continue
                event: dict[str, Any] = json.loads(streamed.data)
                # Transient text events do not name their turn.
                ours = event.get("turn", number if ours else 0) == number
                if not ours:
                    continue
                if event.get("status") == "failed":
                    break
                if piece := text.add(event):
                    sent += piece
                    yield _chunk(answer, {"content": piece})
                if streamed.kind == "turn_ended":
                    break
    if access.cancel_called:
        return
    turn, usage = await answer.turn.finish()
    if turn.status == "failed":
        # The status was sent already, so the error is an event, as in OpenAI's API.
        failed = TurnFailedError(turn.error, answer.turn.session_id, turn.number)
        error = openai_error(turn_fault(failed, for_admin=for_admin))
        yield f"data: {json.dumps(error)}\n\n"
        return
    await answer.remember(sent)
    yield _chunk(answer, {}, finish=_reason(turn))
    if answer.with_usage:
        yield _chunk(answer, None, usage=_usage_shape(usage))
    yield "data: [DONE]\n\n"


def _chunk(
    answer: _Answer,
    delta: dict[str, str] | None,
    *,
    finish: str | None = None,
    usage: CompletionUsage | None = None,
) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    fields: dict[str, Any] = {
        "id": answer.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": answer.asked.model,
        "choices": [] if delta is None else [choice],
    }
    if answer.with_usage:
        fields["usage"] = usage.model_dump() if usage else None
    return f"data: {json.dumps(fields)}\n\n"


def _reason(turn: Turn) -> Literal["stop", "length"]:
    return "length" if turn.status == "out_of_steps" else "stop"


def _digest(messages: tuple[tuple[str, str], ...]) -> str:
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()
