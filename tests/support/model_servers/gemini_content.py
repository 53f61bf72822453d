"""streamGenerateContent, as Google serves it."""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from assay.contracts.messages import Message, Picture, Request, StopReason, ToolCall, ToolSpec
from tests.conformance.model import (
    CallsTools,
    Kind,
    LocksOut,
    Overflows,
    PlayedCall,
    Says,
    TurnsAway,
)
from tests.support.model_servers.http import Refusal, to_event

_FINISH_REASONS = {
    StopReason.ENDED: "STOP",
    StopReason.LENGTH: "MAX_TOKENS",
    StopReason.TOOL_CALLS: "STOP",
    StopReason.FILTERED: "SAFETY",
}


_NOT_SIGNED = b"skip_thought_signature_validator"
"""What the API takes in place of a signature."""


class GeminiContent:
    """The server's side of the format."""

    def read_request(self, path: str, body: Mapping[str, Any]) -> Request:
        assert path == "/v1beta/models/played-model:streamGenerateContent?alt=sse", path
        config = body.get("generationConfig", {})
        system = [
            Message(role="system", text=part["text"])
            for part in body.get("systemInstruction", {}).get("parts", ())
        ]
        said = [message for content in body["contents"] for message in _read_content(content)]
        return Request(
            messages=(*system, *said),
            tools=tuple(
                _read_tool(declaration)
                for tool in body.get("tools", ())
                for declaration in tool["functionDeclarations"]
            ),
            max_output_tokens=config["maxOutputTokens"],
            temperature=config.get("temperature"),
            seed=config.get("seed"),
            stop=tuple(config.get("stopSequences", ())),
            json_schema=config.get("responseJsonSchema"),
        )

    def write_begin(self, behaviour: Says | CallsTools) -> bytes:
        del behaviour
        thought = {"text": "Hm, what shall I say?", "thought": True}
        return _response([thought])

    def write_piece(self, text: str) -> bytes:
        return _response([{"text": text}])

    def write_calls(self, behaviour: CallsTools) -> bytes:
        parts = [
            {"functionCall": {"name": call.name, "args": arguments}}
            for call in behaviour.calls
            if (arguments := _arguments(call)) is not None
        ]
        for part in parts[:1]:
            signature = base64.b64encode(behaviour.state.encode() or b"signed").decode()
            part["thoughtSignature"] = signature  # pyright: ignore[reportArgumentType] - beside it
        return _response(parts) if parts else b""

    def write_end(self, behaviour: Says | CallsTools) -> bytes:
        says = behaviour if isinstance(behaviour, Says) else Says(pieces=())
        calls = behaviour.calls if isinstance(behaviour, CallsTools) else ()
        end: dict[str, Any] = {"finishReason": _FINISH_REASONS[behaviour.stop_reason]}
        # This API parses arguments itself, and gives broken ones in words.
        broken = [call for call in calls if _arguments(call) is None]
        if broken and behaviour.stop_reason is not StopReason.LENGTH:
            words = f"Malformed function call: {broken[0].name} {broken[0].written}"
            end = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": words}
        usage = {
            "promptTokenCount": says.usage.input_tokens,
            "cachedContentTokenCount": says.usage.cached_input_tokens,
            "candidatesTokenCount": says.usage.output_tokens - says.usage.reasoning_tokens,
            "thoughtsTokenCount": says.usage.reasoning_tokens,
        }
        return to_event(
            {
                "candidates": [{"index": 0, **end}],
                "usageMetadata": usage,
                "modelVersion": "played-model-2026",
            }
        )

    def write_failure(self) -> bytes:
        error = {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
        return to_event({"error": error})

    def write_refusal(self, behaviour: TurnsAway | Overflows | LocksOut, key: str) -> Refusal:
        match behaviour:
            case LocksOut():
                return _refusal(401, "UNAUTHENTICATED", f"API key not valid: {key}")
            case Overflows():
                words = (
                    "The input token count (2000) exceeds the maximum number of tokens allowed"
                    " (1000)."
                )
                return _refusal(400, "INVALID_ARGUMENT", words)
            case TurnsAway(kind=Kind.MALFORMED):
                return _refusal(400, "INVALID_ARGUMENT", "Invalid JSON payload received.")
            case TurnsAway(kind=Kind.RATE_LIMITED, retry_after=wait):
                headers = {"Retry-After": wait} if wait else {}
                return _refusal(429, "RESOURCE_EXHAUSTED", "Slow down.", headers)
            case TurnsAway(kind=Kind.BROKEN):
                return _refusal(500, "INTERNAL", "An internal error has occurred.")
            case _:
                raise AssertionError(behaviour)


def _arguments(call: PlayedCall) -> object:
    try:
        return json.loads(call.written)
    except ValueError:
        return None


def _response(parts: list[dict[str, Any]]) -> bytes:
    content = {"role": "model", "parts": parts}
    return to_event(
        {"candidates": [{"index": 0, "content": content}], "modelVersion": "played-model-2026"}
    )


def _refusal(
    status: int, name: str, message: str, headers: Mapping[str, str] | None = None
) -> Refusal:
    error = {"code": status, "message": message, "status": name}
    return Refusal(status=status, body={"error": error}, headers=headers or {})


def _read_content(content: Mapping[str, Any]) -> Iterator[Message]:
    if content["role"] == "model":
        texts = [part["text"] for part in content["parts"] if "text" in part]
        called = [part for part in content["parts"] if "functionCall" in part]
        assert all("thoughtSignature" in part for part in called[:1]), "a call is not signed"
        calls = tuple(
            ToolCall(id=call["id"], name=call["name"], arguments=call["args"])
            for call in (part["functionCall"] for part in called)
        )
        signatures = [base64.b64decode(part["thoughtSignature"]) for part in called[:1]]
        state = b"".join(signatures).replace(_NOT_SIGNED, b"").decode()
        yield Message(role="assistant", text="".join(texts), tool_calls=calls, provider_state=state)
        return
    # The API takes either spelling, and the SDK leaves the names inside as they are.
    shown = (part["inlineData"] for part in content["parts"] if "inlineData" in part)
    pictures = tuple(Picture(media_type=one["mime_type"], base64=one["data"]) for one in shown)
    for part in content["parts"]:
        if answer := part.get("functionResponse"):
            assert answer["name"]
            yield Message(role="tool", text=answer["response"]["output"], answers=answer["id"])
        elif "text" in part:
            yield Message(role="user", text=part["text"], pictures=pictures)


def _read_tool(declaration: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=declaration["name"],
        description=declaration["description"],
        # The API takes either spelling, and the SDK leaves this name as it was given.
        parameters=declaration["parameters_json_schema"],
    )
