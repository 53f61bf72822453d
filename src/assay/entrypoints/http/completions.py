"""`POST /v1/chat/completions`: OpenAI's API, so that chat front ends can talk to the agent.

A front end sends the whole conversation each time. The session in which it goes on is found by a
digest of what was said before the last message; what was never said here begins a new one.
"""

import hashlib
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from assay.contracts.dialogue import CellEnded
from assay.contracts.dialogue_history import Turn
from assay.entrypoints.http.callers import House, Writer
from assay.entrypoints.http.problems import documented, request_id
from assay.entrypoints.http.session_shapes import text_of
from assay.entrypoints.http.streaming import EVENT
from assay.entrypoints.http.words import writable
from assay.hosting.conversations import Begun, difference
from assay.hosting.hosting import Hosting
from assay.hosting.lending import check_model
from assay.hosting.records import Caller

router = APIRouter(prefix="/v1/chat", tags=["chat"])

_OURS: Final = "assay"
_SHOWN_CHARS: Final = 4000
Text = Annotated[str, AfterValidator(writable), Field(max_length=500_000)]


class Part(BaseModel):
    """A piece of a message; only text is read."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["text"])
    text: Text = ""


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[Part] | None = None

    def words(self) -> str:
        """Return what it says."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text).strip()
        return (self.content or "").strip()


class CompletionRequest(BaseModel):
    """A conversation so far; what else OpenAI's API knows is taken and not used."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, AfterValidator(writable)] = Field(
        default=_OURS, max_length=200, examples=["assay"]
    )
    messages: list[ChatMessage] = Field(
        min_length=1, max_length=2000, examples=[[{"role": "user", "content": "What is 2 ** 64?"}]]
    )
    stream: bool = False


class Choice(BaseModel):
    """The one answer."""

    index: int = 0
    message: dict[str, str] = Field(examples=[{"role": "assistant", "content": "It is 2."}])
    finish_reason: Literal["stop", "length"]


class CompletionUsage(BaseModel):
    """Tokens of all replies of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """An answer, as OpenAI's API has it."""

    id: str = Field(examples=["chatcmpl-5f1c9a"])
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    session_id: str = Field(
        description="In which session it went on", examples=["brisk-otter-4f2a"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Going:
    """A turn under way for a front end."""

    house: Hosting
    caller: Caller
    asked: CompletionRequest
    session_id: str
    begun: Begun
    id: str
    said: tuple[tuple[str, str], ...]
    """The conversation up to and with the last message."""

    async def remember(self, answer: str) -> None:
        """Find this session again when the conversation goes on."""
        digest = _digest((*self.said, ("assistant", answer.strip())))
        await self.house.store.put_thread(self.caller.user, digest, self.session_id)


@router.post(
    "/completions",
    response_model=Completion,
    responses={
        **documented(404, 409),
        200: {"content": {"text/event-stream": {"schema": EVENT}}},
    },
)
async def complete(
    request: Request, house: House, caller: Writer, asked: CompletionRequest
) -> Completion | StreamingResponse:
    """Answer the last message of a conversation, with cells and their output in between."""
    said = tuple(
        (message.role, message.words())
        for message in asked.messages
        if message.role in {"user", "assistant"} and message.words()
    )
    session_id, message = await _session(request, house, caller, asked, said)
    begun = await house.begin_turn(caller, session_id, message)
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
        return StreamingResponse(_chunks(going), media_type="text/event-stream")
    turn = await begun.finish()
    answer = _whole(turn)
    await going.remember(answer)
    usage = difference(begun.before, begun.conversation.dialogue.history.usage)
    return Completion(
        id=going.id,
        created=int(time.time()),
        model=asked.model,
        choices=[
            Choice(message={"role": "assistant", "content": answer}, finish_reason=_reason(turn))
        ],
        usage=CompletionUsage(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            total_tokens=usage.input_tokens + usage.output_tokens,
        ),
        session_id=session_id,
    )


async def _session(
    request: Request,
    house: Hosting,
    caller: Caller,
    asked: CompletionRequest,
    said: tuple[tuple[str, str], ...],
) -> tuple[str, str]:
    """Return the session in which a conversation goes on, and what is to be said in it."""
    before, message = said[:-1], said[-1][1] if said else "Hello."
    found = await house.store.thread(caller.user, _digest(before)) if before else None
    if found is not None and await house.store.session(caller.user, found):
        return found, message
    name = asked.model.removeprefix(_OURS).removeprefix(":")
    row = await house.conversations.create(caller.user, model=check_model(name, house.settings))
    await house.audit(caller, "session.create", row.id, request=request_id(request))
    if before:
        told = "\n\n".join(f"{role}: {words}" for role, words in before)
        message = f"This was said before, elsewhere:\n\n{told}\n\nNow:\n\n{message}"
    return row.id, message


async def _chunks(going: _Going) -> AsyncGenerator[str]:
    """Answer in pieces: each cell when it begins, its output when it ends, then the answer."""
    sent: list[str] = []
    yield _chunk(going, {"role": "assistant", "content": ""})
    turn_number, conversations = going.begun.turn, going.house.conversations
    async with (
        conversations.feed(going.caller.user, going.session_id) as feed,
        aclosing(feed.listen(0)) as heard,
    ):
        async for told in heard:
            if told is None:
                continue
            event: dict[str, Any] = json.loads(told.data)
            if event.get("turn") != turn_number:
                continue
            if piece := _piece(event):
                text = ("\n\n" if sent else "") + piece
                sent.append(text)
                yield _chunk(going, {"content": text})
            if told.kind == "turn_ended":
                break
    turn = await going.begun.finish()
    await going.remember("".join(sent))
    yield _chunk(going, {}, finish=_reason(turn))
    yield "data: [DONE]\n\n"


def _chunk(going: _Going, delta: dict[str, str], *, finish: str | None = None) -> str:
    fields = {
        "id": going.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": going.asked.model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return f"data: {json.dumps(fields)}\n\n"


def _whole(turn: Turn) -> str:
    """Return a turn as the pieces of it would have been sent."""
    pieces: list[str] = []
    thoughts = iter(turn.thoughts)
    for step in turn.steps:
        if isinstance(step, CellEnded):
            pieces.append(_begun(next(thoughts, ""), step.code))
            pieces.append(_fenced("text", step.observation))
        else:
            pieces.append(_used(step.thought, step.tool, step.answer))
    pieces.append(text_of(turn.answer))
    return "\n\n".join(piece for piece in pieces if piece)


def _piece(event: dict[str, Any]) -> str:
    match event["kind"]:
        case "cell_began":
            return _begun(event["thought"], event["code"])
        case "cell_ended":
            return _fenced("text", event["observation"])
        case "tool_used":
            return _used(event["thought"], event["tool"], event["answer"])
        case "turn_ended":
            return text_of(event["text"])
        case _:
            return ""


def _begun(thought: str, code: str) -> str:
    cell = _fenced("python", code)
    return text_of(f"{thought}\n\n{cell}" if thought else cell)


def _used(thought: str, tool: str, answer: str) -> str:
    told = f"*Used `{tool}`:*\n\n{_fenced('text', answer)}"
    return text_of(f"{thought}\n\n{told}" if thought else told)


def _fenced(language: str, text: str) -> str:
    if not text.strip():
        return ""
    text = text_of(text.rstrip())
    if len(text) > _SHOWN_CHARS:
        text = text[:_SHOWN_CHARS] + "\n…"
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _reason(turn: Turn) -> Literal["stop", "length"]:
    return "length" if turn.status == "out_of_steps" else "stop"


def _digest(said: tuple[tuple[str, str], ...]) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
