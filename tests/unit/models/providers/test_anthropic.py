"""The messages API: its cache, its dislikes and the corners of its streams."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pydantic import SecretStr

from assay.contracts.errors import ModelUnavailableError
from assay.contracts.messages import Message, ReasoningEffort, Request, StopReason, ToolCall
from assay.models.catalogue import model_info, provider, quirks_for
from assay.models.connection import Connection
from assay.models.providers.anthropic import AnthropicModel, to_messages
from assay.settings.sections import NamedModelSettings
from tests.support.model_servers.in_process import Played

ANTHROPIC = provider("anthropic")
OLD = "claude-sonnet-4-5"
LED = "claude-of-tomorrow"  # the SDK warns of those of yesterday
REQUEST = Request(messages=(Message(role="user", text="hello"),), max_output_tokens=50)
INFO = replace(model_info(ANTHROPIC, LED), supports_prefill=True)
CONNECTION = Connection(base_url="http://127.0.0.1:9", api_key=SecretStr("sk-secret"))

START = {
    "type": "message_start",
    "message": {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "claude-1",
        "content": [],
        "usage": {"input_tokens": 5, "output_tokens": 1},
    },
}
STOP = {"type": "message_stop"}


def text(said: str) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": said}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def tool_use(index: int) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"t{index}", "name": "look", "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": block}


def arguments(index: int, written: str) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": written}
    return {"type": "content_block_delta", "index": index, "delta": delta}


def end(reason: str | None) -> dict[str, Any]:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason},
        "usage": {"output_tokens": 9},
    }


@asynccontextmanager
async def asking(played: Played) -> AsyncGenerator[AnthropicModel]:
    async with AsyncAnthropic(
        api_key="sk-secret",
        base_url=CONNECTION.base_url,
        http_client=played.client(),
        max_retries=0,
    ) as client:
        yield AnthropicModel(
            client,
            provider=ANTHROPIC,
            model=LED,
            info=INFO,
            connection=CONNECTION,
        )


def body_for(request: Request, model: str = "claude-sonnet-4-5") -> dict[str, Any]:
    return to_messages(
        request, info=model_info(ANTHROPIC, model), quirks=quirks_for(model), by="a:m"
    )


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("claude-sonnet-4-5", "medium", {"type": "enabled", "budget_tokens": 16_384}),
        ("claude-sonnet-4-5", "none", {"type": "disabled"}),
        ("claude-sonnet-5-5", "medium", {"type": "adaptive"}),
    ],
)
def test_a_reasoning_effort_is_a_budget_or_left_to_the_model(
    model: str, effort: ReasoningEffort, sent: dict[str, Any]
) -> None:
    own = NamedModelSettings(reasoning_effort=effort)
    info = model_info(ANTHROPIC, model, own=own)
    request = replace(REQUEST, temperature=0.5, max_output_tokens=None)

    body = to_messages(request, info=info, quirks=quirks_for(model), by="a:m")

    assert body["thinking"] == sent
    assert (body.get("output_config") == {"effort": "medium"}) is (sent["type"] == "adaptive")
    assert ("temperature" in body) is (sent["type"] == "disabled")


def test_a_short_reply_has_no_room_for_reasoning() -> None:
    info = replace(model_info(ANTHROPIC, OLD), reasoning_effort="high")
    request = replace(REQUEST, max_output_tokens=1500)

    body = to_messages(request, info=info, quirks=quirks_for(OLD), by="a:m")

    assert body["thinking"] == {"type": "disabled"}


async def test_a_call_without_arguments_has_none() -> None:
    played = Played(START, tool_use(0), arguments(0, ""), end("tool_use"), STOP)
    async with asking(played) as model:
        (call,) = (await model.reply(REQUEST)).message.tool_calls

    assert call.arguments == {}


async def test_arguments_that_were_cut_are_kept_as_they_were_written() -> None:
    played = Played(START, tool_use(0), arguments(0, '{"a": '), end("max_tokens"), STOP)
    async with asking(played) as model:
        reply = await model.reply(REQUEST)

    assert reply.stop_reason is StopReason.LENGTH
    assert reply.message.tool_calls == (
        ToolCall(id="t0", name="look", arguments=None, written='{"a": '),
    )


async def test_thoughts_are_not_part_of_the_text() -> None:
    block = {"type": "thinking", "thinking": "", "signature": ""}
    begun = {"type": "content_block_start", "index": 0, "content_block": block}
    delta = {"type": "thinking_delta", "thinking": "Hm."}
    thought = {"type": "content_block_delta", "index": 0, "delta": delta}
    played = Played(START, begun, thought, text("Hi."), end("end_turn"), STOP)
    async with asking(played) as model:
        assert (await model.reply(REQUEST)).message.text == "Hi."


async def test_events_of_kinds_not_known_yet_are_passed_over() -> None:
    unknown = {"type": "weather_report", "sky": "blue"}
    played = Played(START, unknown, text("Hi."), unknown, end("end_turn"), STOP)
    async with asking(played) as model:
        assert (await model.reply(REQUEST)).message.text == "Hi."


async def test_a_reply_without_its_last_event_broke_off() -> None:
    async with asking(Played(START, text("Hi."), end("end_turn"))) as model:
        with pytest.raises(ModelUnavailableError, match="broke off"):
            await model.reply(REQUEST)


async def test_white_space_at_the_end_of_a_beginning_is_neither_sent_nor_doubled() -> None:
    played = Played(START, text("\n"), text("def f(): ..."), end("end_turn"), STOP)
    async with asking(played) as model:
        reply = await model.reply(replace(REQUEST, prefill="```python\n"))

    assert played.asked[0]["messages"][-1] == {"role": "assistant", "content": "```python"}
    assert reply.message.text == "```python\ndef f(): ..."


def test_a_beginning_is_not_sent_to_models_that_refuse_it() -> None:
    body = body_for(replace(REQUEST, prefill="def"), "claude-sonnet-5-5")

    assert body["messages"][-1]["role"] == "user"


def test_the_prompt_is_marked_for_the_cache() -> None:
    system = Message(role="system", text="Be brief.")
    body = body_for(replace(REQUEST, messages=(system, *REQUEST.messages)))

    assert body["cache_control"] == {"type": "ephemeral"}
    assert body["system"] == [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    ]


def test_a_temperature_stays_within_what_the_api_takes() -> None:
    hot = replace(REQUEST, temperature=1.4)

    assert body_for(hot)["temperature"] == 1.0
    assert "temperature" not in body_for(hot, "claude-opus-4-7")


def test_stop_words_of_white_space_are_left_out() -> None:
    assert body_for(replace(REQUEST, stop=("\n\n", "END")))["stop_sequences"] == ["END"]
    assert "stop_sequences" not in body_for(replace(REQUEST, stop=("\n",)))


def test_turns_alternate_and_are_never_empty() -> None:
    messages = (
        Message(role="user", text="one"),
        Message(role="user", text="two"),
        Message(role="assistant", text=" "),
        Message(role="user", text="three"),
    )
    body = body_for(replace(REQUEST, messages=messages))

    assert [turn["role"] for turn in body["messages"]] == ["user"]
    assert [block["text"] for block in body["messages"][0]["content"]] == ["one", "two", "three"]
