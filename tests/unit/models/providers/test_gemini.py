"""Gemini's own API: signatures of calls, blocked prompts, and what its SDK reads from elsewhere."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from google import genai
from google.genai.types import HttpOptions
from pydantic import SecretStr

from assay.contracts.errors import ModelUnavailableError
from assay.contracts.messages import Message, Request, StopReason, ToolCall, ToolSpec
from assay.models.catalogue import model_info, provider, quirks_for
from assay.models.connection import Connection
from assay.models.providers.gemini import GeminiModel, open_gemini, to_config, to_contents
from tests.support.model_servers.in_process import Played

GEMINI = provider("gemini")
INFO = model_info(GEMINI, GEMINI.default_model)
QUIRKS = quirks_for(GEMINI.default_model)
LOOK = ToolSpec(name="look", description="Look.", parameters={"type": "object"})
FETCH = ToolSpec(name="fetch", description="Fetch.", parameters={"type": "object"})
REQUEST = Request(messages=(Message(role="user", text="hello"),), tools=(LOOK,))
CONNECTION = Connection(base_url="http://127.0.0.1:9", api_key=SecretStr("AIza-secret"))


@asynccontextmanager
async def asking(played: Played) -> AsyncGenerator[GeminiModel]:
    async with played.client() as http_client:
        options = HttpOptions(
            base_url=CONNECTION.base_url, api_version="v1beta", httpx_async_client=http_client
        )
        client = genai.Client(api_key="AIza-secret", vertexai=False, http_options=options)
        try:
            yield GeminiModel(
                client.aio, provider=GEMINI, model="m", info=INFO, connection=CONNECTION
            )
        finally:
            client.close()


def parts(*given: dict[str, Any], finish: str = "") -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(given)}}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {})]}


def called(name: str, **more: object) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {}}, **more}


def sent_parts(contents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for content in contents for part in content["parts"]]


async def test_a_signature_is_sent_again_with_its_call() -> None:
    played = Played(
        parts(called("look", thoughtSignature="c2lnbmVk"), called("look"), finish="STOP")
    )
    async with asking(played) as model:
        reply = await model.reply(REQUEST)
        await model.reply(replace(REQUEST, messages=(*REQUEST.messages, reply.message)))

    first, second = played.asked[1]["contents"][-1]["parts"]
    assert first["thoughtSignature"] == "c2lnbmVk"
    assert "thoughtSignature" not in second


def test_a_call_whose_signature_is_lost_says_so_in_the_agreed_words() -> None:
    calls = tuple(ToolCall(id=f"{n}", name="look", arguments={}) for n in range(2))
    said = Message(role="assistant", tool_calls=calls)
    contents = to_contents(replace(REQUEST, messages=(*REQUEST.messages, said)), by="a:m")

    first, second = sent_parts(contents)[-2:]
    assert first["thought_signature"] == b"skip_thought_signature_validator"
    assert "thought_signature" not in second


async def test_a_blocked_prompt_is_a_filtered_reply() -> None:
    async with asking(Played({"promptFeedback": {"blockReason": "SAFETY"}})) as model:
        reply = await model.reply(REQUEST)

    assert (reply.stop_reason, reply.message.text) == (StopReason.FILTERED, "")


@pytest.mark.parametrize(("tools", "name"), [((LOOK,), "look"), ((LOOK, FETCH), "unreadable_call")])
async def test_a_call_that_the_api_could_not_read_is_named_only_when_sure(
    tools: tuple[ToolSpec, ...], name: str
) -> None:
    async with asking(Played(parts(finish="MALFORMED_FUNCTION_CALL"))) as model:
        reply = await model.reply(replace(REQUEST, tools=tools))

    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments) == (name, None)
    assert reply.stop_reason is StopReason.TOOL_CALLS


async def test_a_reason_that_is_none_is_unavailable() -> None:
    async with asking(Played(parts({"text": "I"}, finish="OTHER"))) as model:
        with pytest.raises(ModelUnavailableError, match="OTHER"):
            await model.reply(REQUEST)


async def test_a_reply_that_could_be_continued_is_one_call_that_ran_out_of_length() -> None:
    played = Played(parts({"text": "I"}, finish="CONTINUATION"))
    async with asking(played) as model:
        reply = await model.reply(REQUEST)

    assert (reply.stop_reason, len(played.asked)) == (StopReason.LENGTH, 1)


def test_answers_of_tools_carry_the_name_of_the_call() -> None:
    call = ToolCall(id="7", name="look", arguments={})
    messages = (
        *REQUEST.messages,
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", answers="7", text="a tree"),
    )
    answer = sent_parts(to_contents(replace(REQUEST, messages=messages), by="a:m"))[-1]

    assert answer["function_response"]["name"] == "look"


def test_a_schema_asks_for_json() -> None:
    config = to_config(replace(REQUEST, json_schema={"type": "object"}), info=INFO, quirks=QUIRKS)

    assert config["response_mime_type"] == "application/json"
    assert "response_json_schema" not in to_config(
        replace(REQUEST, json_schema={"type": "object"}),
        info=replace(INFO, supports_json_schema=False),
        quirks=QUIRKS,
    )


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ("gemini-2.5-pro", {"thinking_budget": 16_384}),
        ("gemini-3.8-flash", {"thinking_level": "MEDIUM"}),
    ],
)
def test_a_reasoning_effort_is_a_budget_or_a_level(model: str, sent: dict[str, Any]) -> None:
    info = replace(model_info(GEMINI, model), reasoning_effort="medium")

    config = to_config(REQUEST, info=info, quirks=quirks_for(model))

    assert config["thinking_config"] == sent
    assert "thinking_config" not in to_config(REQUEST, info=INFO, quirks=QUIRKS)


async def test_the_environment_does_not_decide_whom_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-other")
    async with open_gemini(GEMINI, "m", info=INFO, connection=CONNECTION) as model:
        with pytest.raises(ModelUnavailableError, match="gemini:m cannot be reached"):
            await model.reply(REQUEST)


async def test_waits_are_ours_and_not_sent_to_the_server() -> None:
    connection = replace(CONNECTION, connect_timeout_s=3.0, silence_s=4.0)
    async with open_gemini(GEMINI, "m", info=INFO, connection=connection) as model:
        http_client = model._client._api_client._async_httpx_client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - what is sent through
        request = http_client.build_request("POST", CONNECTION.base_url, timeout=None)
        for hook in http_client.event_hooks["request"]:
            await hook(request)

    assert request.extensions["timeout"]["connect"] == 3.0
    assert request.extensions["timeout"]["read"] == 4.0


async def test_a_signature_of_another_model_is_not_sent() -> None:
    played = Played(parts(called("look", thoughtSignature="c2lnbmVk"), finish="STOP"))
    async with asking(played) as model:
        own = (await model.reply(REQUEST)).message
    conversation = replace(REQUEST, messages=(*REQUEST.messages, own))

    mine = sent_parts(to_contents(conversation, by="gemini:m"))[-1]
    others = sent_parts(to_contents(conversation, by="gemini:other"))[-1]

    assert mine["thought_signature"] == b"signed"
    assert others["thought_signature"] == b"skip_thought_signature_validator"


@pytest.mark.parametrize("calls", ['["no base64!"]', "[7]", '"x"', "null"])
def test_a_state_that_makes_no_sense_is_as_good_as_none(calls: str) -> None:
    said = Message(
        role="assistant",
        tool_calls=(ToolCall(id="1", name="look", arguments={}),),
        provider_state=f'{{"by": "a:m", "calls": {calls}}}',
    )

    part = sent_parts(to_contents(replace(REQUEST, messages=(said,)), by="a:m"))[-1]

    assert part["thought_signature"] == b"skip_thought_signature_validator"
