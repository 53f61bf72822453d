"""Gemini provider: Google's native API with contents, parts and function declarations."""

import base64
import binascii
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from google import genai
from google.genai.client import AsyncClient
from google.genai.errors import APIError
from google.genai.types import Candidate, GenerateContentResponse, HttpOptions

from assay.contracts.errors import AssayError
from assay.contracts.messages import (
    Message,
    ModelInfo,
    ReasoningEffort,
    Request,
    StopReason,
    ToolCall,
)
from assay.models.catalogue import Provider, Quirks
from assay.models.connection import Connection, build_http_client
from assay.models.model_bases import ProviderModel, reasoning_tokens
from assay.models.stream_builder import (
    ReplyDraft,
    arguments_to_send,
    call_states,
    system_text,
    unseal,
)

if TYPE_CHECKING:
    import httpx2

_API_VERSION: Final = "v1beta"
_STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "STOP": StopReason.ENDED,
    "MAX_TOKENS": StopReason.LENGTH,
    "CONTINUATION": StopReason.LENGTH,
    "MALFORMED_FUNCTION_CALL": StopReason.TOOL_CALLS,
}
"""All other reasons are content filters."""
_BROKE_OFF: Final = frozenset({"OTHER", "MALFORMED_RESPONSE", "FINISH_REASON_UNSPECIFIED"})

_LEVELS: Final[Mapping[ReasoningEffort, str]] = {
    "none": "MINIMAL",
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_ANY_SIGNATURE: Final = b"skip_thought_signature_validator"
"""The value that the API accepts as the signature of another provider's call."""
_UNREADABLE: Final = "unreadable_call"
_SEEDS: Final = 2**31
"""The API uses signed 32-bit integers."""


@asynccontextmanager
async def open_gemini(
    provider: Provider, model: str, *, info: ModelInfo, connection: Connection
) -> AsyncGenerator["GeminiModel"]:
    """Open a connection to the API; leaving the context closes it."""
    async with build_http_client(connection) as http_client:
        _keep_timeouts(http_client)
        client = genai.Client(
            # If this were empty, the SDK would search the environment.
            api_key=connection.api_key.get_secret_value() or "none",
            vertexai=False,
            http_options=HttpOptions(
                base_url=connection.base_url,
                api_version=_API_VERSION,
                httpx_async_client=http_client,
            ),
        )
        try:
            yield GeminiModel(
                client.aio, provider=provider, model=model, info=info, connection=connection
            )
        finally:
            client.close()  # the synchronous client, which the SDK always creates


def _keep_timeouts(http_client: "httpx2.AsyncClient") -> None:
    """Restore the timeouts of a request: the SDK has one number for all of them, or none."""
    timeout = http_client.timeout.as_dict()

    async def set_timeout(request: "httpx2.Request") -> None:
        request.extensions["timeout"] = timeout

    http_client.event_hooks = {"request": [set_timeout]}


class GeminiModel(ProviderModel[AsyncClient, GenerateContentResponse]):
    """One of Google's models."""

    async def _stream(self, request: Request) -> AsyncGenerator[GenerateContentResponse]:
        stream = await self._client.models.generate_content_stream(
            model=self._model,
            contents=to_contents(request, by=self.name),  # pyright: ignore[reportArgumentType] - dictionaries
            config=to_config(request, info=self._info, quirks=self._quirks),  # pyright: ignore[reportArgumentType] - a dictionary
        )
        async for response in stream:
            yield response

    def _explain(self, error: Exception) -> AssayError | None:
        if not isinstance(error, APIError):
            return None
        answer: Any = error  # the SDK declares no types here
        headers = getattr(answer.response, "headers", None)
        return self._failure(answer.code or 200, answer.details, headers)

    def _take(self, event: GenerateContentResponse, draft: ReplyDraft) -> None:
        draft.model = event.model_version or draft.model
        if usage := event.usage_metadata:
            draft.input_tokens = usage.prompt_token_count or 0
            draft.cached_input_tokens = usage.cached_content_token_count or 0
            written = (usage.candidates_token_count, usage.thoughts_token_count)
            draft.output_tokens = sum(count or 0 for count in written)
            draft.reasoning_tokens = usage.thoughts_token_count or 0
        if event.prompt_feedback and event.prompt_feedback.block_reason:
            draft.stop_reason = StopReason.FILTERED
        for candidate in (event.candidates or ())[:1]:
            _take_parts(candidate, draft)
            reason = candidate.finish_reason.value if candidate.finish_reason else ""
            if reason in _BROKE_OFF:
                raise self._unavailable(f"could not go on: {reason}")
            if reason == "MALFORMED_FUNCTION_CALL":
                # The API parses arguments itself, and the SDK omits its report on broken ones.
                # It does not name the tool either.
                names = [tool.name for tool in draft.request.tools]
                name = names[0] if len(names) == 1 else _UNREADABLE
                draft.add_call(_UNREADABLE, name=name, written="(not valid JSON)")
            if reason:
                draft.stop_reason = _STOP_REASONS.get(reason, StopReason.FILTERED)


def _take_parts(candidate: Candidate, draft: ReplyDraft) -> None:
    parts = candidate.content.parts if candidate.content else None
    for part in parts or ():
        if part.text and not part.thought:
            draft.add_text(part.text)
        if call := part.function_call:
            signature = part.thought_signature
            draft.add_call(
                object(),  # each arrives whole
                id=call.id or "",
                name=call.name or "",
                written=json.dumps(call.args or {}, ensure_ascii=False),
                state=base64.b64encode(signature).decode() if signature else None,
            )


def to_config(request: Request, *, info: ModelInfo, quirks: Quirks) -> dict[str, Any]:
    """Return all of a request except its messages."""
    config: dict[str, Any] = {
        "max_output_tokens": info.output_limit(request),
        # Assay runs and counts the calls.
        "automatic_function_calling": {"disable": True},
        "automatic_continuation": False,
    }
    if system := system_text(request):
        config["system_instruction"] = system
    if request.temperature is not None:
        config["temperature"] = request.temperature
    if request.seed is not None and info.supports_seed:
        config["seed"] = request.seed % _SEEDS
    if request.stop:
        config["stop_sequences"] = list(request.stop)
    if request.tools:
        declarations = [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters_json_schema": dict(tool.parameters),
            }
            for tool in request.tools
        ]
        config["tools"] = [{"function_declarations": declarations}]
    if (effort := info.reasoning_effort) is not None:
        config["thinking_config"] = (
            {"thinking_level": _LEVELS[effort]}
            if quirks.reasoning == "effort"
            else {"thinking_budget": reasoning_tokens(effort, info.output_limit(request))}
        )
    if request.json_schema is not None and info.supports_json_schema:
        config["response_mime_type"] = "application/json"
        config["response_json_schema"] = dict(request.json_schema)
    return config


def to_contents(request: Request, *, by: str) -> list[dict[str, Any]]:
    """Return the messages as contents; consecutive messages of one side are one content."""
    names = {call.id: call.name for message in request.messages for call in message.tool_calls}
    contents: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role == "system":
            continue
        role = "model" if message.role == "assistant" else "user"
        parts = _to_parts(message, names, by)
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _to_parts(message: Message, names: Mapping[str, str], by: str) -> list[dict[str, Any]]:
    if message.role == "tool":
        response = {
            "id": message.answers,
            "name": names.get(message.answers, message.answers),
            "response": {"output": message.text},
        }
        return [{"function_response": response}]
    said: list[dict[str, Any]] = []
    if message.text or not message.tool_calls:
        said.append({"text": message.text})
    said += [
        {"inline_data": {"mime_type": one.media_type, "data": base64.b64decode(one.base64)}}
        for one in message.pictures
    ]
    signatures = _signatures_of(message, by)
    calls = [
        _to_function_call(call, signature)
        for call, signature in zip(message.tool_calls, signatures, strict=True)
    ]
    return said + calls


def _signatures_of(message: Message, by: str) -> list[bytes | None]:
    states = call_states(unseal(message, by), len(message.tool_calls))
    signatures = [_signature_in(state) for state in states]
    # Of several parallel calls the API signs only the first, and expects only that signature.
    if signatures and not any(signatures):
        signatures[0] = _ANY_SIGNATURE
    return signatures


def _signature_in(state: object) -> bytes | None:
    try:
        return base64.b64decode(state, validate=True) if isinstance(state, str) else None
    except binascii.Error:
        return None


def _to_function_call(call: ToolCall, signature: bytes | None) -> dict[str, Any]:
    function_call = {"id": call.id, "name": call.name, "args": arguments_to_send(call)}
    part: dict[str, Any] = {"function_call": function_call}
    if signature:
        part["thought_signature"] = signature
    return part
