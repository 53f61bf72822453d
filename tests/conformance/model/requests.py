"""Promises about what goes out: all of a request reaches the peer, as it was meant."""

from dataclasses import replace

from assay.contracts.messages import Message, Picture, Request, ToolCall
from tests.conformance.model.promise import promise
from tests.conformance.model.questions import CONVERSATION, QUESTION, WEATHER, ask
from tests.conformance.model.subject import ModelSubject, Says

_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


async def _received(subject: ModelSubject, request: Request) -> Request:
    async with subject.open(Says(pieces=("so",))) as opened:
        await ask(opened.model, request)
        assert len(opened.peer.received) == 1, f"{len(opened.peer.received)} requests arrived"
        return opened.peer.received[0]


@promise(Says, observed=True)
async def the_whole_conversation_arrives(subject: ModelSubject) -> None:
    received = await _received(subject, CONVERSATION)

    for sent, arrived in zip(CONVERSATION.messages, received.messages, strict=True):
        calls = tuple(replace(call, written="") for call in arrived.tool_calls)
        assert replace(arrived, tool_calls=calls) == sent, f"{sent} arrived as {arrived}"


@promise(Says, observed=True)
async def tools_arrive_with_their_schemas(subject: ModelSubject) -> None:
    received = await _received(subject, CONVERSATION)

    assert received.tools == (WEATHER,), received.tools


@promise(Says, observed=True)
async def nothing_is_made_of_what_was_not_asked(subject: ModelSubject) -> None:
    received = await _received(subject, QUESTION)

    assert received == QUESTION, received


@promise(Says, observed=True)
async def length_temperature_and_stop_words_arrive(subject: ModelSubject) -> None:
    request = replace(QUESTION, max_output_tokens=321, temperature=0.25, stop=("```", "END"))
    received = await _received(subject, request)

    assert received == request, received


@promise(Says, observed=True)
async def where_no_length_is_asked_for_there_is_plenty(subject: ModelSubject) -> None:
    request = replace(QUESTION, max_output_tokens=None)
    received = await _received(subject, request)

    assert received.max_output_tokens == subject.info.output_limit(request), received


@promise(Says, observed=True)
async def no_more_is_asked_for_than_the_model_can_write(subject: ModelSubject) -> None:
    received = await _received(subject, replace(QUESTION, max_output_tokens=10**9))

    assert received.max_output_tokens == subject.info.max_output_tokens, received


@promise(Says, observed=True, ability="supports_seed")
async def a_seed_arrives(subject: ModelSubject) -> None:
    for seed in (0, 4711):
        received = await _received(subject, replace(QUESTION, seed=seed))

        assert received.seed == seed, received


@promise(Says, observed=True)
async def a_temperature_of_zero_arrives(subject: ModelSubject) -> None:
    received = await _received(subject, replace(QUESTION, temperature=0.0))

    assert received.temperature == 0.0, received


@promise(Says, observed=True, ability="supports_json_schema")
async def a_schema_for_the_answer_arrives(subject: ModelSubject) -> None:
    received = await _received(subject, replace(QUESTION, json_schema=_SCHEMA))

    assert received.json_schema == _SCHEMA, received


@promise(Says, observed=True, ability="supports_prefill")
async def a_beginning_to_continue_arrives(subject: ModelSubject) -> None:
    received = await _received(subject, replace(QUESTION, prefill="def"))

    assert received.prefill == "def", received


@promise(Says, observed=True, ability="sees_pictures")
async def pictures_arrive_with_the_words_around_them(subject: ModelSubject) -> None:
    figures = (Picture(media_type="image/png", base64="iVBORw0KGgo="),)
    conversation = (
        *CONVERSATION.messages[:-2],
        Message(role="user", text="The newest figures:", pictures=figures),
    )
    received = await _received(subject, replace(CONVERSATION, messages=conversation))

    assert received.messages[-1] == conversation[-1], received.messages[-1]
    assert received.messages[-2].role == "tool", received.messages[-2]


@promise(Says, observed=True)
async def a_past_call_with_broken_arguments_is_sent_as_an_object(subject: ModelSubject) -> None:
    broken = ToolCall(id="call_1", name="weather", arguments=None, written='{"place": Rome')
    conversation = (
        *QUESTION.messages,
        Message(role="assistant", tool_calls=(broken,)),
        Message(role="tool", answers="call_1", text="these arguments are no JSON"),
    )
    request = replace(QUESTION, messages=conversation, tools=(WEATHER,))
    received = await _received(subject, request)

    call = received.messages[-2].tool_calls[0]
    assert call.arguments is not None, "servers refuse a conversation with broken JSON in it"
    assert broken.written in call.arguments.values(), call
