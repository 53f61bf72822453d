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

from assay.contracts.dialogue_history import Turn
from assay.entrypoints.http.callers import House, Writer
from assay.entrypoints.http.completion_text import Telling, whole_text
from assay.entrypoints.http.problems import documented, request_id
from assay.entrypoints.http.streaming import EVENT
from assay.entrypoints.http.words import writable
from assay.hosting.conversations import Begun, difference
from assay.hosting.hosting import Hosting
from assay.hosting.lending import check_model
from assay.hosting.records import Caller

router = APIRouter(prefix="/v1/chat", tags=["chat"])

_OURS: Final = "assay"
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
    """Answer in pieces: words as they come, each cell when it begins, its output when it ends."""
    telling, sent = Telling(), ""
    ours = False
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
            # Words that pass by do not say of which turn they are.
            ours = event.get("turn", turn_number if ours else 0) == turn_number
            if not ours:
                continue
            if piece := telling.hear(event):
                sent += piece
                yield _chunk(going, {"content": piece})
            if told.kind == "turn_ended":
                break
    turn = await going.begun.finish()
    await going.remember(sent)
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


def _reason(turn: Turn) -> Literal["stop", "length"]:
    return "length" if turn.status == "out_of_steps" else "stop"


def _digest(said: tuple[tuple[str, str], ...]) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
