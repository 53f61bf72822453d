"""Tools for models that make no native calls: what they are told, and what is read from them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.messages import (
    Message,
    ModelInfo,
    Reply,
    Request,
    StopReason,
    ToolCall,
    ToolSpec,
)
from assay.contracts.ports import OnText, ignore_text
from assay.models.plain_text_tools import PlainTextToolsModel
from tests.doubles.scripted_model import INFO, ScriptedModel, calls_tool, says
from tests.support.apart import run_apart

IN_WORDS = replace(INFO, tool_calls=False)
BY_SCHEMA = replace(IN_WORDS, supports_json_schema=True)
RUN = ToolSpec(
    name="run",
    description="Run a command.",
    parameters={"type": "object", "properties": {"argv": {"type": "array"}}, "required": ["argv"]},
)
LOOK = ToolSpec(name="look", description="Look at a file.", parameters={"type": "object"})
ASKED = Request(
    messages=(Message(role="system", text="Be brief."), Message(role="user", text="Do it.")),
    tools=(RUN, LOOK),
)
BLOCK = '```call\n{"tool": "run", "arguments": {"argv": ["ls"]}}\n```'


class Drips(ScriptedModel):
    """Says its replies character by character."""

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        reply = await super().reply(request)
        for piece in reply.message.text:
            on_text(piece)
        return reply


async def reply_to(
    text: str, info: ModelInfo = IN_WORDS, request: Request = ASKED
) -> tuple[Reply, str, Request]:
    """Return the reply, what was told of it, and what the model was asked."""
    inner = Drips([says(text)], info)
    heard: list[str] = []
    reply = await PlainTextToolsModel(inner).reply(request, on_text=heard.append)
    return reply, "".join(heard), inner.asked[0]


async def test_a_block_at_the_end_is_a_call_and_not_told() -> None:
    reply, heard, _ = await reply_to(f"Let me see.\n{BLOCK}")

    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments) == ("run", {"argv": ["ls"]})
    assert call.id
    assert reply.stop_reason is StopReason.TOOL_CALLS
    assert reply.message.text == heard == "Let me see.\n"


async def test_several_blocks_are_several_calls_with_ids_of_their_own() -> None:
    reply, heard, _ = await reply_to(f"{BLOCK}\n{BLOCK}\nand more")

    assert [call.name for call in reply.message.tool_calls] == ["run", "run"]
    assert len({call.id for call in reply.message.tool_calls}) == 2
    assert heard == reply.message.text == ""


@pytest.mark.parametrize(
    "text",
    [
        "No tool is needed.",
        "```python\nprint(1)\n```",
        "```callable\nx\n```",
        "so ```call it",
        "``",
    ],
)
async def test_text_without_a_block_is_told_whole(text: str) -> None:
    reply, heard, _ = await reply_to(text)

    assert reply.message.tool_calls == ()
    assert reply.stop_reason is StopReason.ENDED
    assert reply.message.text == heard == text


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ('```call\n{"tool": "run", "arguments": {"argv": [', "run"),
        ('```call\n{"tool": "run", "arguments": ["ls"]}\n```', "run"),
        ("```call\nrun ls\n```", "unreadable_call"),
    ],
)
async def test_a_block_that_cannot_be_read_is_a_call_with_broken_arguments(
    block: str, name: str
) -> None:
    reply, _, _ = await reply_to(block)

    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments) == (name, None)
    assert call.written in block


@given(text=st.text(alphabet="`cal \n\r\u2028{}x", max_size=40))
def test_what_is_told_is_what_is_returned(text: str) -> None:
    async def check() -> None:
        reply, heard, _ = await reply_to(text)
        assert heard == reply.message.text

    run_apart(check)


async def test_the_tools_are_told_behind_the_system_message_and_not_sent() -> None:
    _, _, asked = await reply_to("done")

    system = asked.messages[0]
    assert asked.tools == ()
    assert system.role == "system"
    assert system.text.startswith("Be brief.\n\n")
    assert "- run: Run a command." in system.text
    assert json.dumps(dict(RUN.parameters)) in system.text


async def test_past_calls_and_answers_are_told_in_words_and_in_turns() -> None:
    call = ToolCall(id="1", name="run", arguments={"argv": ["ls"]})
    past = (
        Message(role="user", text="Do it."),
        Message(role="assistant", text="Let me see.", tool_calls=(call, replace(call, id="2"))),
        Message(role="tool", answers="1", text="a.py"),
        Message(role="tool", answers="2", text="b.py"),
        Message(role="user", text="Go on."),
    )
    for info in (IN_WORDS, BY_SCHEMA):
        _, _, asked = await reply_to("done", info, replace(ASKED, messages=past))

        roles = [message.role for message in asked.messages]
        assert roles == ["system", "user", "assistant", "user"]
        assert asked.messages[-1].text == ("Result of run:\na.py\n\nResult of run:\nb.py\n\nGo on.")
        assert asked.messages[-2].text.count('"argv": ["ls"]') == 2
        assert "Let me see." in asked.messages[-2].text
        assert all(message.tool_calls == () for message in asked.messages)


async def test_a_past_call_reads_like_the_call_that_is_asked_for() -> None:
    first, _, _ = await reply_to(f"Let me see.\n{BLOCK}")
    answer = Message(role="tool", answers=first.message.tool_calls[0].id, text="a.py")
    messages = (*ASKED.messages, first.message, answer)

    _, _, asked = await reply_to("done", request=replace(ASKED, messages=messages))

    assert asked.messages[2].text == f"Let me see.\n{BLOCK}"


async def test_a_model_that_can_be_held_to_a_schema_is_held_to_one() -> None:
    written = {"say": "Let me see.", "tool": "run", "arguments": {"argv": ["ls"]}}
    reply, heard, asked = await reply_to(json.dumps(written), BY_SCHEMA)

    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments) == ("run", {"argv": ["ls"]})
    assert reply.message.text == heard == "Let me see."
    assert asked.json_schema is not None
    forms = {form["properties"]["tool"]["const"]: form for form in asked.json_schema["anyOf"]}
    assert set(forms) == {"run", "look", "none"}
    assert forms["run"]["properties"]["arguments"] == RUN.parameters


async def test_no_tool_is_a_choice_too() -> None:
    written: dict[str, object] = {"say": "It is 4.", "tool": "none", "arguments": {}}
    reply, heard, _ = await reply_to(json.dumps(written), BY_SCHEMA)

    assert reply.message.tool_calls == ()
    assert reply.message.text == heard == "It is 4."
    assert reply.stop_reason is StopReason.ENDED


async def test_half_an_object_is_said_as_it_is() -> None:
    reply, heard, _ = await reply_to('{"say": "Let me', BY_SCHEMA)

    assert reply.message.text == heard == '{"say": "Let me'


async def test_a_schema_with_references_is_left_to_the_words() -> None:
    tool = replace(RUN, parameters={"$defs": {"a": {}}, "properties": {"x": {"$ref": "#/$defs/a"}}})
    _, _, asked = await reply_to("{}", BY_SCHEMA, replace(ASKED, tools=(tool,)))

    assert asked.json_schema is not None
    assert "$ref" not in json.dumps(asked.json_schema)


@pytest.mark.parametrize(
    "more", [{"prefill": "Well"}, {"json_schema": {"type": "object"}}], ids=["prefill", "schema"]
)
async def test_a_form_that_was_asked_for_is_kept(more: dict[str, object]) -> None:
    request = replace(ASKED, **more)

    _, _, asked = await reply_to("done", BY_SCHEMA, request)

    assert (asked.prefill, asked.json_schema) == (request.prefill, request.json_schema)


async def test_a_conversation_without_tools_is_left_alone() -> None:
    twice = Request(messages=(Message(role="user", text="a"), Message(role="user", text="b")))

    _, _, asked = await reply_to("done", request=twice)

    assert asked == twice


async def test_a_native_call_is_left_as_it_is() -> None:
    native = calls_tool("run", {"argv": []}, call_id="7")

    reply = await PlainTextToolsModel(ScriptedModel([native], IN_WORDS)).reply(ASKED)

    assert reply == native
