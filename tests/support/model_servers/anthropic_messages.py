"""The messages API, as Anthropic serves it."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from assay.contracts.messages import Message, Picture, Request, StopReason, ToolCall, ToolSpec
from tests.conformance.model import (
    CallsTools,
    Kind,
    LocksOut,
    Overflows,
    Says,
    TurnsAway,
)
from tests.support.model_servers.http import Refusal, to_event

_STOP_REASONS = {
    StopReason.ENDED: "end_turn",
    StopReason.LENGTH: "max_tokens",
    StopReason.TOOL_CALLS: "tool_use",
    StopReason.FILTERED: "refusal",
}
_TEXT_BLOCK = 0


class AnthropicMessages:
    """The server's side of the format."""

    def read_request(self, path: str, body: Mapping[str, Any]) -> Request:
        assert path == "/v1/messages", path
        assert body["stream"] is True
        system = [Message(role="system", text=block["text"]) for block in body.get("system", ())]
        turns = list(body["messages"])
        assert turns[0]["role"] == "user", "a conversation begins with the user"
        roles = [turn["role"] for turn in turns]
        assert all(one != other for one, other in pairwise(roles)), roles
        prefill = turns.pop()["content"] if roles[-1] == "assistant" else ""
        assert prefill == prefill.rstrip(), "final assistant content cannot end with white space"
        return Request(
            messages=(*system, *(message for turn in turns for message in _read_turn(turn))),
            tools=tuple(_read_tool(tool) for tool in body.get("tools", ())),
            max_output_tokens=body["max_tokens"],
            temperature=body.get("temperature"),
            stop=tuple(body.get("stop_sequences", ())),
            prefill=prefill,
            json_schema=body.get("output_config", {}).get("format", {}).get("schema"),
        )

    def write_begin(self, behaviour: Says | CallsTools) -> bytes:
        used = (behaviour if isinstance(behaviour, Says) else Says(pieces=())).usage
        usage = {
            "input_tokens": used.input_tokens - used.cached_input_tokens - 1,
            "cache_read_input_tokens": used.cached_input_tokens,
            "cache_creation_input_tokens": 1,
            "output_tokens": 1,
        }
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "played-model-2026",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        begun = _event("message_start", message=message) + _event("ping")
        begun += _thoughts(behaviour.state if isinstance(behaviour, CallsTools) else "")
        block = {"type": "text", "text": ""}
        return begun + _event("content_block_start", index=_TEXT_BLOCK, content_block=block)

    def write_piece(self, text: str) -> bytes:
        delta = {"type": "text_delta", "text": text}
        return _event("content_block_delta", index=_TEXT_BLOCK, delta=delta)

    def write_calls(self, behaviour: CallsTools) -> bytes:
        written = b""
        for index, call in enumerate(behaviour.calls, start=_TEXT_BLOCK + 1):
            block: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{index}", "input": {}}
            block["name"] = call.name
            written += _event("content_block_start", index=index, content_block=block)
            half = len(call.written) // 2
            for part in ("", call.written[:half], call.written[half:]):
                delta = {"type": "input_json_delta", "partial_json": part}
                written += _event("content_block_delta", index=index, delta=delta)
            written += _event("content_block_stop", index=index)
        return written

    def write_end(self, behaviour: Says | CallsTools) -> bytes:
        says = behaviour if isinstance(behaviour, Says) else Says(pieces=())
        reason = _STOP_REASONS[behaviour.stop_reason]
        return (
            _event("content_block_stop", index=_TEXT_BLOCK)
            + _event(
                "message_delta",
                delta={"stop_reason": reason, "stop_sequence": None},
                usage={
                    "output_tokens": says.usage.output_tokens,
                    "output_tokens_details": {"thinking_tokens": says.usage.reasoning_tokens},
                },
            )
            + _event("message_stop")
        )

    def write_failure(self) -> bytes:
        return _event("error", error={"type": "overloaded_error", "message": "Overloaded"})

    def write_refusal(self, behaviour: TurnsAway | Overflows | LocksOut, key: str) -> Refusal:
        match behaviour:
            case LocksOut():
                return _refusal(401, "authentication_error", f"invalid x-api-key {key}")
            case Overflows():
                words = "prompt is too long: 2000 tokens > 1000 maximum"
                return _refusal(400, "invalid_request_error", words)
            case TurnsAway(kind=Kind.MALFORMED):
                return _refusal(400, "invalid_request_error", "x: Extra inputs are not permitted")
            case TurnsAway(kind=Kind.RATE_LIMITED, retry_after=wait):
                headers = {"Retry-After": wait} if wait else {}
                return _refusal(429, "rate_limit_error", "Slow down.", headers)
            case TurnsAway(kind=Kind.BROKEN):
                return _refusal(529, "overloaded_error", "Overloaded")
            case _:
                raise AssertionError(behaviour)


def _thoughts(state: str) -> bytes:
    """Write what comes before everything else: a thought that is signed, and one that is hidden."""
    if not state:
        return b""
    at = _TEXT_BLOCK + 100
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    hidden = {"type": "redacted_thinking", "data": state}
    return (
        _event("content_block_start", index=at, content_block=thinking)
        + _event("content_block_delta", index=at, delta=_delta("thinking", "Hm, "))
        + _event("content_block_delta", index=at, delta=_delta("thinking", "the weather."))
        + _event("content_block_delta", index=at, delta=_delta("signature", state))
        + _event("content_block_stop", index=at)
        + _event("content_block_start", index=at + 1, content_block=hidden)
        + _event("content_block_stop", index=at + 1)
    )


def _delta(name: str, text: str) -> dict[str, str]:
    return {"type": f"{name}_delta", name: text}


def _event(kind: str, **fields: object) -> bytes:
    return to_event({"type": kind, **fields}, name=kind)


def _refusal(
    status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
) -> Refusal:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return Refusal(status=status, body=body, headers=headers or {})


def _read_turn(turn: Mapping[str, Any]) -> Iterator[Message]:
    if turn["role"] == "assistant":
        texts = [block["text"] for block in turn["content"] if block["type"] == "text"]
        calls = tuple(
            ToolCall(id=block["id"], name=block["name"], arguments=block["input"])
            for block in turn["content"]
            if block["type"] == "tool_use"
        )
        yield Message(
            role="assistant",
            text="".join(texts),
            tool_calls=calls,
            provider_state=_read_thoughts(turn["content"]),
        )
        return
    pictures = tuple(
        Picture(media_type=block["source"]["media_type"], base64=block["source"]["data"])
        for block in turn["content"]
        if block["type"] == "image"
    )
    for block in turn["content"]:
        if block["type"] == "tool_result":
            yield Message(role="tool", text=block["content"], answers=block["tool_use_id"])
        elif block["type"] == "text":
            yield Message(role="user", text=block["text"], pictures=pictures)


def _read_thoughts(blocks: list[Mapping[str, Any]]) -> str:
    """Read what was thought: it comes first, unchanged, and both of it or nothing."""
    if not any("thinking" in block["type"] for block in blocks):
        return ""
    thought, hidden = blocks[:2]
    assert thought["type"] == "thinking", thought
    assert thought["thinking"] == "Hm, the weather.", thought
    assert hidden == {"type": "redacted_thinking", "data": thought["signature"]}, hidden
    return thought["signature"]


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=tool["name"], description=tool["description"], parameters=tool["input_schema"]
    )
