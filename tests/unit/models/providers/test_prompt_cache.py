"""Prompt caches: each request starts with all of the one before it, and marks are where needed."""

import json
from typing import Any

import pytest

from assay.contracts.messages import Message, Request, ToolCall, ToolSpec
from assay.models.catalogue import model_info, provider, quirks_for
from assay.models.providers.anthropic import to_messages
from assay.models.providers.gemini import to_config, to_contents
from assay.models.providers.openai_compatible import to_chat_completion

TOOLS = (
    ToolSpec(name="write", description="Write.", parameters={"type": "object"}),
    ToolSpec(name="look", description="Look.", parameters={"type": "object"}),
)
FIRST = (Message(role="system", text="Be brief."), Message(role="user", text="Fix the bug."))
TURN = (
    Message(role="assistant", tool_calls=(ToolCall(id="1", name="look", arguments={"a": 1}),)),
    Message(role="tool", answers="1", text="a tree"),
)
MARK = {"type": "ephemeral"}


def body_of(name: str, model: str, messages: tuple[Message, ...]) -> dict[str, Any]:
    asked, request = provider(name), Request(messages=messages, tools=TOOLS)
    info, quirks = model_info(asked, model), quirks_for(model)
    match asked.wire:
        case "anthropic":
            return to_messages(request, info=info, quirks=quirks, by=f"{name}:{model}")
        case "gemini":
            config = to_config(request, info=info, quirks=quirks)
            return {**config, "messages": to_contents(request, by=f"{name}:{model}")}
        case "openai":
            return to_chat_completion(
                request, info=info, provider=asked, quirks=quirks, by=f"{name}:{model}"
            )


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("openai", "gpt-6.1-sol"),
        ("vllm", "qwen3-coder-480b"),
        ("gemini", "gemini-3.8-flash"),
        ("anthropic", "claude-sonnet-5-5"),
    ],
)
def test_a_request_starts_with_all_of_the_one_before_it(name: str, model: str) -> None:
    first = body_of(name, model, FIRST)
    second = body_of(name, model, FIRST + TURN)
    earlier, later = first.pop("messages"), second.pop("messages")

    assert json.dumps(first, default=str) == json.dumps(second, default=str), "tools and system"
    assert later[: len(earlier)] == earlier
    assert len(later) > len(earlier)


def test_marks_are_sent_for_the_models_at_openrouter_that_need_them() -> None:
    marked = body_of("openrouter", "anthropic/claude-sonnet-5.5", FIRST + TURN)["messages"]

    system, user, _, last = marked
    assert system["content"] == [{"type": "text", "text": "Be brief.", "cache_control": MARK}]
    assert user["content"] == "Fix the bug."
    assert last["content"] == [{"type": "text", "text": "a tree", "cache_control": MARK}]


@pytest.mark.parametrize(
    ("name", "model"), [("openrouter", "moonshotai/kimi-k3"), ("vllm", "anthropic/claude")]
)
def test_other_models_get_no_marks(name: str, model: str) -> None:
    assert "cache_control" not in json.dumps(body_of(name, model, FIRST + TURN))
