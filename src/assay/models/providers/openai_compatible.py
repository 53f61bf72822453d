"""OpenAI-compatible provider: chat completions, the format of most servers."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import openai
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice

from assay.contracts.errors import AssayError
from assay.contracts.messages import Message, ModelInfo, Request, StopReason, ToolCall, ToolSpec
from assay.models.catalogue import Provider, Quirks
from assay.models.connection import Connection, build_http_client
from assay.models.model_bases import ProviderModel
from assay.models.stream_builder import ReplyDraft, arguments_to_send, call_states, unseal

_STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "length": StopReason.LENGTH,
    "model_length": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "max_output_tokens": StopReason.LENGTH,
    "tool_calls": StopReason.TOOL_CALLS,
    "function_call": StopReason.TOOL_CALLS,
    "content_filter": StopReason.FILTERED,
}
_BROKE_OFF: Final = frozenset({"abort", "error", "insufficient_system_resource"})
"""Stop reasons that mean that the server could not continue."""

_REASONING_TEXT: Final = "reasoning_content"
"""The name that DeepSeek and similar providers use."""
_REASONING_PARTS: Final = "reasoning_details"
"""OpenRouter's list form, with signed or encrypted parts."""
_REASONING: Final = (_REASONING_TEXT, _REASONING_PARTS)
_GROWING: Final = frozenset({"text", "summary", "data"})
"""The fields of a part that arrive in pieces."""
_CALL_STATE: Final = "extra_content"
"""Where Gemini's compatible endpoint stores the signature of a call."""

_OPENROUTER: Final = "openrouter"
_CACHED: Final = {"type": "ephemeral"}
_NO_KEY = "none"
"""The SDK requires a key, and would otherwise take one from the environment."""


@asynccontextmanager
async def open_openai_compatible(
    provider: Provider, model: str, *, info: ModelInfo, connection: Connection
) -> AsyncGenerator["OpenAICompatibleModel"]:
    """Open a connection to a server; leaving the context closes it."""
    # The SDK would send these values from the environment to every server.
    organisation = {"OpenAI-Organization": openai.Omit(), "OpenAI-Project": openai.Omit()}
    async with openai.AsyncOpenAI(
        api_key=connection.api_key.get_secret_value() or _NO_KEY,
        base_url=connection.base_url,
        max_retries=0,  # a separate model around this one retries
        default_headers={} if provider.name == "openai" else organisation,  # pyright: ignore[reportArgumentType] - documented
        http_client=build_http_client(connection),
    ) as client:
        yield OpenAICompatibleModel(
            client, provider=provider, model=model, info=info, connection=connection
        )


class OpenAICompatibleModel(ProviderModel[openai.AsyncOpenAI, ChatCompletionChunk]):
    """One model behind a server that speaks chat completions."""

    async def _stream(self, request: Request) -> AsyncGenerator[ChatCompletionChunk]:
        fields = to_chat_completion(
            request,
            info=self._info,
            provider=self._provider,
            quirks=self._quirks,
            by=self.name,
        )
        async with await self._client.chat.completions.create(
            messages=fields.pop("messages"),
            model=self._model,
            stream=True,
            extra_body=fields,
        ) as stream:
            async for chunk in stream:
                yield chunk

    def _explain(self, error: Exception) -> AssayError | None:
        return self._explain_by_kind(error, openai)

    def _take(self, event: ChatCompletionChunk, draft: ReplyDraft) -> None:
        draft.model = event.model or draft.model
        if event.usage:
            draft.input_tokens = event.usage.prompt_tokens or 0
            details = event.usage.prompt_tokens_details
            # DeepSeek uses a different name.
            cached = getattr(event.usage, "prompt_cache_hit_tokens", 0)
            draft.cached_input_tokens = (details and details.cached_tokens) or cached or 0
            draft.output_tokens = event.usage.completion_tokens or 0
            written = event.usage.completion_tokens_details
            draft.reasoning_tokens = (written and written.reasoning_tokens) or 0
        # Servers omit required fields, hence the `or` here and below.
        for choice in event.choices or ():
            _take_choice(choice, draft)
            if choice.finish_reason in _BROKE_OFF:
                raise self._unavailable(f"could not go on: {choice.finish_reason}")


def _take_choice(choice: Choice, draft: ReplyDraft) -> None:
    refusal = None
    if delta := choice.delta:
        refusal = delta.refusal
        draft.add_text(delta.content or refusal or "")
        _keep_reasoning(delta.model_extra or {}, draft)
        for call in delta.tool_calls or ():
            function = call.function
            draft.add_call(
                call.index or 0,
                id=call.id or "",
                name=(function and function.name) or "",
                written=(function and function.arguments) or "",
                state=(call.model_extra or {}).get(_CALL_STATE),
            )
    if refusal:
        draft.stop_reason = StopReason.FILTERED
    elif choice.finish_reason and draft.stop_reason is None:
        draft.stop_reason = _STOP_REASONS.get(choice.finish_reason, StopReason.ENDED)


def _keep_reasoning(fields: Mapping[str, Any], draft: ReplyDraft) -> None:
    """Store the reasoning: servers with these fields need it back with the calls."""
    if text := fields.get(_REASONING_TEXT):
        draft.state[_REASONING_TEXT] = draft.state.get(_REASONING_TEXT, "") + text
    kept: list[dict[str, Any]] = draft.state.setdefault(_REASONING_PARTS, [])
    for part in fields.get(_REASONING_PARTS) or ():
        same = next((one for one in kept if _is_same_part(one, part)), None)
        if same is None:
            kept.append(dict(part))
            continue
        for name, value in part.items():
            if name in _GROWING and value:
                same[name] = (same.get(name) or "") + value
            elif value is not None:
                same[name] = value


def _is_same_part(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    names = ("index", "type")
    return other.get("index") is not None and all(one.get(n) == other.get(n) for n in names)


def to_chat_completion(
    request: Request, *, info: ModelInfo, provider: Provider, quirks: Quirks, by: str
) -> dict[str, Any]:
    """Return a request as the body of a chat completion, without model and stream."""
    fields: dict[str, Any] = {
        "messages": [_to_message(message, provider, by) for message in request.messages],
        provider.max_tokens_name: info.output_limit(request),
    }
    if provider.name == _OPENROUTER and _is_of_anthropic(by):
        _mark_for_cache(fields["messages"])
    if provider.streams_usage:
        fields["stream_options"] = {"include_usage": True}
    if request.temperature is not None and quirks.takes_temperature:
        fields["temperature"] = request.temperature
    if request.seed is not None and info.supports_seed:
        fields["seed"] = request.seed
    if request.stop and quirks.takes_stop:
        fields["stop"] = list(request.stop)
    if request.tools:
        fields["tools"] = [_to_tool(tool) for tool in request.tools]
    if request.json_schema is not None and info.supports_json_schema:
        schema = {"name": "reply", "schema": dict(request.json_schema), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if info.reasoning_effort is not None and provider.name == _OPENROUTER:
        fields["reasoning"] = {"effort": info.reasoning_effort}
    elif info.reasoning_effort is not None:
        fields["reasoning_effort"] = info.reasoning_effort
    if request.prefill and info.supports_prefill:
        fields["messages"].append({"role": "assistant", "content": request.prefill})
        fields |= provider.prefill_parameters
    return fields


def _is_of_anthropic(model: str) -> bool:
    return model.partition(":")[2].startswith("anthropic/")


def _mark_for_cache(messages: list[dict[str, Any]]) -> None:
    """Mark the ends of the system message and of the last message with text.

    The marks are for Anthropic's models, which cache nothing without them.
    """
    system = next((one for one in messages if one["role"] == "system"), None)
    last = next((one for one in reversed(messages) if one["content"]), None)
    for message in {id(one): one for one in (system, last) if one is not None}.values():
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if parts:
            message["content"] = [*parts[:-1], {**parts[-1], "cache_control": _CACHED}]


def _to_tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _to_message(message: Message, provider: Provider, by: str) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.pictures:
        said = [{"type": "text", "text": message.text}] if message.text else []
        written["content"] = said + [
            {
                "type": "image_url",
                "image_url": {"url": f"data:{one.media_type};base64,{one.base64}"},
            }
            for one in message.pictures
        ]
    if message.role == "tool":
        written["tool_call_id"] = message.answers
    if message.tool_calls:
        written["content"] = message.text or None
        state = unseal(message, by)
        written |= {name: state[name] for name in _REASONING if name in state}
        states = call_states(state, len(message.tool_calls))
        written["tool_calls"] = [
            _to_tool_call(call, provider, of_call)
            for call, of_call in zip(message.tool_calls, states, strict=True)
        ]
    return written


def _to_tool_call(call: ToolCall, provider: Provider, state: object) -> dict[str, Any]:
    # Not the original text: servers put past calls into templates, and fail on broken JSON.
    arguments = json.dumps(arguments_to_send(call))
    function = {"name": call.name, "arguments": arguments}
    more = {_CALL_STATE: state} if state else dict(provider.tool_call_parameters)
    return {"id": call.id, "type": "function", "function": function} | more
