"""Anthropic provider: the messages API with its prompt cache."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anthropic
from anthropic.types import RawContentBlockDeltaEvent, RawMessageStreamEvent

from assay.contracts.errors import AssayError
from assay.contracts.messages import Message, ModelInfo, Request, StopReason, ToolCall
from assay.models.catalogue import Provider, Quirks
from assay.models.connection import Connection, build_http_client
from assay.models.model_bases import ProviderModel, reasoning_tokens
from assay.models.stream_builder import ReplyDraft, arguments_to_send, system_text, unseal

_STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "tool_use": StopReason.TOOL_CALLS,
    "refusal": StopReason.FILTERED,
}
_CACHED: Final = {"type": "ephemeral"}
_HIGHEST_TEMPERATURE: Final = 1.0
_LEAST_THINKING_TOKENS: Final = 1024
"""The API rejects a smaller budget."""
_THOUGHTS: Final = "thoughts"
"""Signed or hidden thoughts; a turn with tool calls must be sent back with them."""


@asynccontextmanager
async def open_anthropic(
    provider: Provider, model: str, *, info: ModelInfo, connection: Connection
) -> AsyncGenerator["AnthropicModel"]:
    """Open a connection to the API; leaving the context closes it."""
    async with anthropic.AsyncAnthropic(
        # If this were empty, the SDK would search the environment and the disk.
        api_key=connection.api_key.get_secret_value() or "none",
        base_url=connection.base_url,
        max_retries=0,  # a separate model around this one retries
        http_client=build_http_client(connection),
    ) as client:
        yield AnthropicModel(
            client, provider=provider, model=model, info=info, connection=connection
        )


class AnthropicModel(ProviderModel[anthropic.AsyncAnthropic, RawMessageStreamEvent]):
    """One of Anthropic's models."""

    async def _stream(self, request: Request) -> AsyncGenerator[RawMessageStreamEvent]:
        fields = to_messages(request, info=self._info, quirks=self._quirks, by=self.name)
        async with await self._client.messages.create(
            max_tokens=self._info.output_limit(request),
            messages=fields.pop("messages"),
            model=self._model,
            stream=True,
            extra_body=fields,
        ) as stream:
            async for event in stream:
                yield event

    def _explain(self, error: Exception) -> AssayError | None:
        return self._explain_by_kind(error, anthropic)

    def _unsent(self, prefill: str) -> str:
        # The API rejects white space at the end.
        return prefill[len(prefill.rstrip()) :]

    def _take(self, event: RawMessageStreamEvent, draft: ReplyDraft) -> None:
        match event.type:
            case "message_start":
                draft.model = event.message.model
                usage = event.message.usage
                cached = usage.cache_read_input_tokens or 0
                draft.cached_input_tokens = cached
                # The API counts cache reads and cache writes separately.
                written = usage.cache_creation_input_tokens or 0
                draft.input_tokens = usage.input_tokens + cached + written
                draft.cache_write_tokens = written
            case "content_block_start":
                block = event.content_block
                if block.type == "tool_use":
                    draft.add_call(event.index, id=block.id, name=block.name)
                elif block.type == "text":
                    draft.add_text(block.text)
                elif block.type in {"thinking", "redacted_thinking"}:
                    draft.state.setdefault(_THOUGHTS, []).append(block.model_dump(mode="json"))
            case "content_block_delta":
                _take_delta(event, draft)
            case "message_delta":
                draft.output_tokens = event.usage.output_tokens or draft.output_tokens
                if details := event.usage.output_tokens_details:
                    draft.reasoning_tokens = details.thinking_tokens or 0
                if reason := event.delta.stop_reason:
                    draft.announced = _STOP_REASONS.get(reason, StopReason.ENDED)
            case "message_stop":
                draft.stop_reason = draft.announced
            case _:
                pass  # the ends of blocks, and newer kinds


def _take_delta(event: RawContentBlockDeltaEvent, draft: ReplyDraft) -> None:
    delta = event.delta
    match delta.type:
        case "text_delta":
            draft.add_text(delta.text)
        case "input_json_delta":
            draft.add_call(event.index, written=delta.partial_json)
        case "thinking_delta":
            _grow_thought(draft, "thinking", delta.thinking)
        case "signature_delta":
            _grow_thought(draft, "signature", delta.signature)
        case _:
            pass  # citations, and newer kinds


def _grow_thought(draft: ReplyDraft, name: str, text: str) -> None:
    # Blocks are sequential, so the last one grows.
    thoughts: list[dict[str, Any]] = draft.state.get(_THOUGHTS, [{}])
    thoughts[-1][name] = (thoughts[-1].get(name) or "") + text


def to_messages(request: Request, *, info: ModelInfo, quirks: Quirks, by: str) -> dict[str, Any]:
    """Return a request as the body for the messages API, without model, length and stream."""
    fields: dict[str, Any] = {
        "messages": _to_turns(request.messages, by),
        "cache_control": _CACHED,  # up to the last message: the next turn starts with all of it
    }
    if system := system_text(request):
        # A second cache mark: other conversations start with it too, after the tools.
        fields["system"] = [{"type": "text", "text": system, "cache_control": _CACHED}]
    if request.tools:
        fields["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": dict(tool.parameters),
            }
            for tool in request.tools
        ]
    thinking = _to_thinking(request, info, quirks)
    fields |= thinking
    thinks = thinking.get("thinking", {}).get("type") in {"enabled", "adaptive"}
    # The API accepts no temperature with thoughts.
    if request.temperature is not None and quirks.takes_temperature and not thinks:
        fields["temperature"] = min(request.temperature, _HIGHEST_TEMPERATURE)
    # The API rejects stop sequences that are only white space.
    if stop := [word for word in request.stop if word.strip()]:
        fields["stop_sequences"] = stop
    if request.json_schema is not None and info.supports_json_schema:
        schema = {"type": "json_schema", "schema": dict(request.json_schema)}
        fields["output_config"] = {**fields.get("output_config", {}), "format": schema}
    if info.supports_prefill and (beginning := request.prefill.rstrip()):
        fields["messages"].append({"role": "assistant", "content": beginning})
    return fields


def _to_thinking(request: Request, info: ModelInfo, quirks: Quirks) -> dict[str, Any]:
    """Return the fields for the reasoning effort; none leave it to the model's default."""
    if (effort := info.reasoning_effort) is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if quirks.reasoning == "effort":
        known = "low" if effort == "minimal" else effort
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": known}}
    budget = reasoning_tokens(effort, info.output_limit(request))
    if budget < _LEAST_THINKING_TOKENS:
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _to_turns(messages: tuple[Message, ...], by: str) -> list[dict[str, Any]]:
    """Convert messages to alternating turns; consecutive messages of one side are one turn."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system" or not (blocks := _to_blocks(message, by)):
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _to_blocks(message: Message, by: str) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.answers, "content": message.text}]
    # The API rejects an empty text.
    said: list[dict[str, Any]] = []
    if message.text.strip():
        said.append({"type": "text", "text": message.text})
    said += [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": one.media_type, "data": one.base64},
        }
        for one in message.pictures
    ]
    thoughts: list[dict[str, Any]] = list(unseal(message, by).get(_THOUGHTS) or ())
    return thoughts + said + [_to_tool_use(call) for call in message.tool_calls]


def _to_tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_to_send(call)}
