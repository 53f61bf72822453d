"""Chat completions: what servers do differently from each other, and from the specification."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import SecretStr

from assay.contracts.errors import ModelRefusedError, ModelUnavailableError
from assay.contracts.messages import Message, Request, StopReason, ToolCall, ToolSpec
from assay.models.catalogue import model_info, provider, quirks_for
from assay.models.connection import Connection
from assay.models.providers.openai_compatible import (
    OpenAICompatibleModel,
    open_openai_compatible,
    to_chat_completion,
)
from tests.support.model_servers.in_process import Played

REQUEST = Request(messages=(Message(role="user", text="hello"),), max_output_tokens=50)
CONNECTION = Connection(base_url="http://127.0.0.1:9/v1", api_key=SecretStr("sk-secret"))


@asynccontextmanager
async def asking(played: Played, name: str = "ollama") -> AsyncGenerator[OpenAICompatibleModel]:
    asked = provider(name)
    async with AsyncOpenAI(
        api_key="sk-secret",
        base_url=CONNECTION.base_url,
        http_client=played.client(),
        max_retries=0,
    ) as client:
        yield OpenAICompatibleModel(
            client,
            provider=asked,
            model="m",
            info=model_info(asked, "m"),
            connection=CONNECTION,
        )


def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "1", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice]}


def body_for(name: str, request: Request, model: str = "some-model") -> dict[str, Any]:
    asked = provider(name)
    info = model_info(asked, model)
    return to_chat_completion(
        request, info=info, provider=asked, quirks=quirks_for(model), by="a:m"
    )


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("openai", {"reasoning_effort": "low"}),
        ("vllm", {"reasoning_effort": "low"}),
        ("openrouter", {"reasoning": {"effort": "low"}}),
    ],
)
def test_a_reasoning_effort_is_sent_as_the_provider_names_it(
    name: str, sent: dict[str, Any]
) -> None:
    asked = provider(name)
    info = replace(model_info(asked, "m"), reasoning_effort="low")

    body = to_chat_completion(REQUEST, info=info, provider=asked, quirks=quirks_for("m"), by="a:m")

    assert {key: body[key] for key in body if key.startswith("reasoning")} == sent
    assert not any(key.startswith("reasoning") for key in body_for(name, REQUEST))


async def test_calls_without_index_or_id_and_a_wrong_reason_are_understood() -> None:
    call = {"function": {"name": "look", "arguments": '{"a": 1}'}}
    played = Played(chunk({"tool_calls": [call]}), chunk({}, "stop"))
    async with asking(played) as model:
        reply = await model.reply(REQUEST)

    assert reply.stop_reason is StopReason.TOOL_CALLS
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == [
        ("look", {"a": 1})
    ]


async def test_broken_arguments_are_kept_as_they_were_written() -> None:
    call = {"index": 0, "id": "1", "function": {"name": "look", "arguments": '{"a": '}}
    async with asking(Played(chunk({"tool_calls": [call]}), chunk({}, "tool_calls"))) as model:
        reply = await model.reply(REQUEST)

    assert reply.message.tool_calls == (
        ToolCall(id="1", name="look", arguments=None, written='{"a": '),
    )


async def test_a_server_that_counts_nothing_is_one_call_of_no_tokens() -> None:
    async with asking(Played(chunk({"content": "hi"}), chunk({}, "stop"))) as model:
        usage = (await model.reply(REQUEST)).usage

    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (1, 0, 0)


async def test_the_cache_is_counted_under_either_name() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 5}
    counted = {**chunk({}), "choices": [], "usage": usage}
    async with asking(Played(chunk({"content": "hi"}, "stop"), counted)) as model:
        reply = await model.reply(REQUEST)

    assert reply.usage.cached_input_tokens == 5


async def test_a_refusal_in_words_is_filtered() -> None:
    async with asking(Played(chunk({"refusal": "I will not."}), chunk({}, "stop"))) as model:
        reply = await model.reply(REQUEST)

    assert (reply.message.text, reply.stop_reason) == ("I will not.", StopReason.FILTERED)


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
async def test_a_server_that_could_not_go_on_is_unavailable(reason: str) -> None:
    async with asking(Played(chunk({"content": "I"}), chunk({}, reason))) as model:
        with pytest.raises(ModelUnavailableError, match=reason):
            await model.reply(REQUEST)


async def test_events_without_choices_are_passed_over() -> None:
    played = Played({"id": "1"}, {"choices": None}, chunk({"content": "hi"}), chunk({}, "stop"))
    async with asking(played) as model:
        assert (await model.reply(REQUEST)).message.text == "hi"


async def test_a_key_is_not_sent_on_to_where_a_server_points() -> None:
    played = Played(status=307, headers={"Location": "https://elsewhere.example/v1"})
    async with asking(played) as model:
        with pytest.raises(ModelRefusedError) as raised:
            await model.reply(REQUEST)

    assert "base URL" in raised.value.hint
    assert len(played.asked) == 1


async def test_nothing_listening_is_unavailable() -> None:
    asked = provider("ollama")
    async with open_openai_compatible(
        asked, "m", info=model_info(asked, "m"), connection=CONNECTION
    ) as model:
        with pytest.raises(ModelUnavailableError, match="ollama:m cannot be reached"):
            await model.reply(REQUEST)


async def test_the_organisation_in_the_environment_is_for_openai_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-mine")
    sent: dict[str, list[str]] = {}
    for name in ("openai", "ollama"):
        asked = provider(name)
        async with open_openai_compatible(
            asked, "m", info=model_info(asked, "m"), connection=CONNECTION
        ) as model:
            headers = model._client._build_headers(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - what would be sent
                _options()
            )
            sent[name] = [header for header in headers if header.startswith("openai-")]

    assert sent == {"openai": ["openai-organization", "openai-project"], "ollama": []}


def _options() -> Any:
    from openai._models import FinalRequestOptions

    return FinalRequestOptions(method="post", url="/chat/completions")


def test_the_length_goes_by_the_name_that_the_provider_knows() -> None:
    assert body_for("openai", REQUEST)["max_completion_tokens"] == 50
    assert body_for("ollama", REQUEST)["max_tokens"] == 50


def test_what_a_model_refuses_is_not_sent() -> None:
    request = replace(REQUEST, temperature=0.5, stop=("END",))

    assert not {"temperature", "stop"} & set(body_for("openai", request, "gpt-5-mini"))
    assert {"temperature", "stop"} <= set(body_for("openai", request, "gpt-4o"))


def test_a_beginning_is_sent_to_those_who_can_continue_it() -> None:
    request = replace(REQUEST, prefill="def")
    last = {"role": "assistant", "content": "def"}

    assert body_for("llamacpp", request)["messages"][-1] == last
    assert body_for("vllm", request)["messages"][-1] == last
    assert body_for("vllm", request)["continue_final_message"] is True
    assert "continue_final_message" not in body_for("vllm", REQUEST)
    assert body_for("openai", request)["messages"][-1]["role"] == "user"


def test_a_schema_is_sent_to_those_who_can_keep_to_it() -> None:
    request = replace(REQUEST, json_schema={"type": "object"})

    sent = body_for("openai", request, "gpt-4o")["response_format"]["json_schema"]

    assert (sent["schema"], sent["strict"]) == ({"type": "object"}, True)
    assert "response_format" not in body_for("deepseek", request, "deepseek-chat")


def test_past_calls_carry_what_the_provider_wants_to_see_again() -> None:
    call = ToolCall(id="1", name="look", arguments={})
    said = Message(role="assistant", tool_calls=(call,))
    tool = ToolSpec(name="look", description="Look.", parameters={"type": "object"})
    request = replace(REQUEST, messages=(*REQUEST.messages, said), tools=(tool,))

    plain = body_for("openai", request)["messages"][-1]
    signed = body_for("gemini-openai", request)["messages"][-1]

    assert plain["content"] is None
    assert set(plain["tool_calls"][0]) == {"id", "type", "function"}
    assert "thought_signature" in signed["tool_calls"][0]["extra_content"]["google"]


async def test_parts_of_thoughts_are_put_together_and_sent_back_with_the_call() -> None:
    """As OpenRouter tells them: by index and kind, in pieces, some of them encrypted."""
    call = {"index": 0, "id": "1", "function": {"name": "look", "arguments": "{}"}}
    played = Played(
        chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Let me "}]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "see."}]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "s"}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "index": 0, "data": "e"}]}),
        chunk({"tool_calls": [call]}),
        chunk({}, "tool_calls"),
    )
    async with asking(played, "openrouter") as model:
        reply = await model.reply(REQUEST)
        await model.reply(replace(REQUEST, messages=(*REQUEST.messages, reply.message)))

    assert played.asked[1]["messages"][-1]["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Let me see.", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 0, "data": "e"},
    ]
    assert reply.message.text == ""


async def test_the_signature_of_a_call_is_sent_back_with_it() -> None:
    """As Gemini's compatible endpoint wants it; a call of somebody else gets the agreed word."""
    signed = {"google": {"thought_signature": "c2lnbmVk"}}
    function = {"name": "look", "arguments": "{}"}
    call = {"index": 0, "id": "1", "function": function, "extra_content": signed}
    played = Played(chunk({"tool_calls": [call]}), chunk({}, "tool_calls"))
    async with asking(played, "gemini-openai") as model:
        own = (await model.reply(REQUEST)).message
        for message in (own, replace(own, provider_state="")):
            await model.reply(replace(REQUEST, messages=(*REQUEST.messages, message)))

    sent = [asked["messages"][-1]["tool_calls"][0]["extra_content"] for asked in played.asked[1:]]
    skipped = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert sent == [signed, skipped]


async def test_thoughts_that_led_to_no_call_are_not_kept() -> None:
    played = Played(chunk({"reasoning_content": "Hm."}), chunk({"content": "hi"}, "stop"))
    async with asking(played, "deepseek") as model:
        reply = await model.reply(REQUEST)

    assert (reply.message.text, reply.message.provider_state) == ("hi", "")


def test_a_seed_goes_only_to_those_who_know_the_word() -> None:
    seeded = replace(REQUEST, seed=7)

    assert body_for("vllm", seeded)["seed"] == 7
    assert "seed" not in body_for("deepseek", seeded)
    assert "seed" not in body_for("openai", seeded, "gpt-6.1-sol")
