"""Compact a long message history so that it fits into the model's context window. Pure.

The goal, the plan in the model's first reply, the latest report of failing tests and the last
messages stay whole. Old answers of tools, and texts inside old tool calls, lose their ends.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from assay.contracts.messages import Message, ModelInfo, Reply, Request, StopReason, ToolCall
from assay.text.formatting import count

_CHARS_PER_TOKEN: Final = 3
"""A low estimate for code."""
_FULL: Final = 0.7
"""The share of the context window that starts a compaction."""
_GOAL: Final = 0.5
"""The share after it. The difference keeps the prompt cache valid for many replies."""
_KEPT_BEGINNING: Final = 2
"""The system message and the goal."""
_STUB_CHARS: Final = 200
_PASSES: Final = ((6, 1_000), (6, _STUB_CHARS), (2, _STUB_CHARS))
"""How many last messages stay whole, and how much of the text of each earlier reply, which has the
decisions. The next pass follows only if the one before was not enough."""
_PICTURE_CHARS: Final = 4_500
_LEFT_OUT: Final = "\n[the rest was left out]"
ANSWERS_END: Final = "left in this attempt)"
"""The end of each message with answers of tools, in contrast to a report of failing tests."""


def compacted(messages: tuple[Message, ...], info: ModelInfo) -> tuple[Message, ...]:
    """Return the messages, or a shorter version if they fill most of the context window."""
    window = info.context_tokens * _CHARS_PER_TOKEN
    total = sum(map(_size, messages))
    if total <= window * _FULL:
        return messages
    result = list(messages)
    plan = next((at for at, each in enumerate(messages) if each.role == "assistant"), 0)
    reports = [at for at, each in enumerate(messages) if _is_report(each)]
    kept = {plan, *reports[-1:]}
    for end, thought_chars in _PASSES:
        for place in range(_KEPT_BEGINNING, len(messages) - end):
            if total <= window * _GOAL:
                return tuple(result)
            before = result[place]
            most = thought_chars if before.role == "assistant" else _STUB_CHARS
            result[place] = _shorter(before, max_chars=None if place in kept else most)
            total -= _size(before) - _size(result[place])
    return tuple(result)


def _is_report(message: Message) -> bool:
    return message.role == "user" and not message.text.endswith(ANSWERS_END)


def _size(message: Message) -> int:
    arguments = sum(
        len(call.written) or len(json.dumps(dict(call.arguments or {})))
        for call in message.tool_calls
    )
    pictures = _PICTURE_CHARS * len(message.pictures)
    return len(message.text) + len(message.provider_state) + arguments + pictures


def _shorter(message: Message, *, max_chars: int | None) -> Message:
    calls = tuple(_shorter_call(call) for call in message.tool_calls)
    text = message.text if max_chars is None else _cut(message.text, max_chars)
    return replace(message, text=text, tool_calls=calls, pictures=())


def _shorter_call(call: ToolCall) -> ToolCall:
    if call.arguments is None:
        return replace(call, written=_cut(call.written, _STUB_CHARS))
    arguments = _shorter_values(call.arguments)
    return replace(call, arguments=arguments, written=json.dumps(arguments, ensure_ascii=False))


def _shorter_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _cut(value, _STUB_CHARS) if isinstance(value, str) else value
        for name, value in values.items()
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most + len(_LEFT_OUT) else f"{text[:most]}{_LEFT_OUT}"


def largest_reply(request: Request, info: ModelInfo) -> int:
    """Return the most tokens that the model can write after these messages."""
    used = sum(map(_size, request.messages)) // _CHARS_PER_TOKEN
    return min(info.max_output_tokens, info.context_tokens - used)


def cut_off(reply: Reply) -> str:
    """Return `cut off after 100 tokens` for a reply that was; empty for a complete one."""
    if reply.stop_reason is not StopReason.LENGTH:
        return ""
    tokens = reply.usage.output_tokens
    after = f" after {count(tokens, 'token')}" if tokens else ""
    return f"cut off{after}"
