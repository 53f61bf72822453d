"""Chat completions, as OpenAI and those after it serve them."""

import json
from collections.abc import Mapping
from typing import Any

from assay.contracts.messages import (
    Message,
    Picture,
    Request,
    StopReason,
    ToolCall,
    ToolSpec,
)
from tests.conformance.model import (
    CallsTools,
    Kind,
    LocksOut,
    Overflows,
    Says,
    TurnsAway,
)
from tests.support.model_servers.http import Refusal, to_event

_FINISH_REASONS = {
    StopReason.ENDED: "stop",
    StopReason.LENGTH: "length",
    StopReason.TOOL_CALLS: "tool_calls",
    StopReason.FILTERED: "content_filter",
}


class OpenAIChat:
    """The server's side of the format."""

    def read_request(self, path: str, body: Mapping[str, Any]) -> Request:
        assert path == "/v1/chat/completions", path
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        messages = [_read_message(message) for message in body["messages"]]
        prefill = messages.pop().text if messages[-1].role == "assistant" else ""
        return Request(
            messages=tuple(messages),
            tools=tuple(_read_tool(tool["function"]) for tool in body.get("tools", ())),
            max_output_tokens=body["max_tokens"],
            temperature=body.get("temperature"),
            seed=body.get("seed"),
            stop=tuple(body.get("stop", ())),
            prefill=prefill,
            json_schema=body.get("response_format", {}).get("json_schema", {}).get("schema"),
        )

    def write_begin(self, behaviour: Says | CallsTools) -> bytes:
        begun = _chunk({"role": "assistant", "content": ""})
        state = behaviour.state if isinstance(behaviour, CallsTools) else ""
        # As DeepSeek tells its thoughts, in pieces.
        return begun + b"".join(_chunk({"reasoning_content": piece}) for piece in state)

    def write_piece(self, text: str) -> bytes:
        return _chunk({"content": text})

    def write_calls(self, behaviour: CallsTools) -> bytes:
        written = b""
        for index, call in enumerate(behaviour.calls):
            begun = {"name": call.name, "arguments": ""}
            first = {"index": index, "id": f"id-{index}", "type": "function", "function": begun}
            written += _chunk({"tool_calls": [first]})
            half = len(call.written) // 2
            for part in (call.written[:half], call.written[half:]):
                delta = {"index": index, "function": {"arguments": part}}
                written += _chunk({"tool_calls": [delta]})
        return written

    def write_end(self, behaviour: Says | CallsTools) -> bytes:
        says = behaviour if isinstance(behaviour, Says) else Says(pieces=())
        reason = _FINISH_REASONS[behaviour.stop_reason]
        usage = {
            "prompt_tokens": says.usage.input_tokens,
            "completion_tokens": says.usage.output_tokens,
            "total_tokens": says.usage.input_tokens + says.usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": says.usage.cached_input_tokens},
            "completion_tokens_details": {"reasoning_tokens": says.usage.reasoning_tokens},
        }
        counted = to_event({**_FRAME, "choices": [], "usage": usage})
        return _chunk({}, finish_reason=reason) + counted + b"data: [DONE]\n\n"

    def write_failure(self) -> bytes:
        return to_event({"error": {"message": "the engine died", "code": 502}})

    def write_refusal(self, behaviour: TurnsAway | Overflows | LocksOut, key: str) -> Refusal:
        match behaviour:
            case LocksOut():
                return _refusal(401, f"Incorrect API key provided: {key}.", "invalid_api_key")
            case Overflows():
                words = "This model's maximum context length is 1000 tokens."
                return _refusal(400, words, "context_length_exceeded")
            case TurnsAway(kind=Kind.MALFORMED):
                return _refusal(400, "Unknown parameter: 'x'.", "unknown_parameter")
            case TurnsAway(kind=Kind.RATE_LIMITED, retry_after=wait):
                headers = {"Retry-After": wait} if wait else {}
                return _refusal(429, "Slow down.", "rate_limit_exceeded", headers)
            case TurnsAway(kind=Kind.BROKEN):
                return _refusal(500, "The server had an error.", "server_error")
            case _:
                raise AssertionError(behaviour)


_FRAME = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "played-model-2026",
}


def _chunk(delta: Mapping[str, Any], *, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return to_event({**_FRAME, "choices": [choice]})


def _refusal(
    status: int, message: str, code: str, headers: Mapping[str, str] | None = None
) -> Refusal:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return Refusal(status=status, body={"error": error}, headers=headers or {})


def _read_message(message: Mapping[str, Any]) -> Message:
    calls = tuple(
        ToolCall(
            id=call["id"],
            name=call["function"]["name"],
            arguments=json.loads(call["function"]["arguments"]),
            written=call["function"]["arguments"],
        )
        for call in message.get("tool_calls", ())
    )
    content = message["content"] or ""
    parts: list[dict[str, Any]] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    return Message(
        role=message["role"],
        text="".join(part["text"] for part in parts if part["type"] == "text"),
        pictures=tuple(
            _read_picture(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"
        ),
        tool_calls=calls,
        answers=message.get("tool_call_id", ""),
        provider_state=message.get("reasoning_content", ""),
    )


def _read_picture(url: str) -> Picture:
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return Picture(media_type=kind, base64=data)


def _read_tool(function: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=function["name"],
        description=function["description"],
        parameters=function["parameters"],
    )
