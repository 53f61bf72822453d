"""Promises about native tool calls: whole, several at once, and broken."""

from dataclasses import replace

from assay.contracts.messages import Message, Request, StopReason
from tests.conformance.model.promise import promise
from tests.conformance.model.questions import ask, with_weather
from tests.conformance.model.subject import CallsTools, ModelSubject, PlayedCall

_ROME = PlayedCall(name="weather", written='{"place": "Rome", "days": [1, 2], "näive": "✓"}')
_PARIS = PlayedCall(name="weather", written='{"place": "Paris"}')
_STATE = "sealed, ✓"
_BROKEN = PlayedCall(name="weather", written='{"place": "Ro')


@promise(CallsTools, ability="tool_calls")
async def a_tool_call_comes_with_its_arguments(subject: ModelSubject) -> None:
    async with subject.open(CallsTools(calls=(_ROME,), text="One moment.")) as opened:
        reply = await ask(opened.model, with_weather())

    assert reply.message.text == "One moment.", reply
    assert reply.stop_reason is StopReason.TOOL_CALLS, reply
    (call,) = reply.message.tool_calls
    assert call.name == "weather", call
    assert call.arguments == {"place": "Rome", "days": [1, 2], "näive": "✓"}, call
    assert call.id, "a call without an id cannot be answered"


@promise(CallsTools, ability="tool_calls")
async def several_calls_stay_apart_and_in_order(subject: ModelSubject) -> None:
    async with subject.open(CallsTools(calls=(_ROME, _PARIS, _PARIS))) as opened:
        reply = await ask(opened.model, with_weather())

    calls = reply.message.tool_calls
    places = [(call.arguments or {}).get("place") for call in calls]
    assert places == ["Rome", "Paris", "Paris"], reply
    assert len({call.id for call in calls}) == 3, f"ids that are not unique: {calls}"


@promise(CallsTools, ability="tool_calls")
async def broken_arguments_are_part_of_the_reply(subject: ModelSubject) -> None:
    async with subject.open(CallsTools(calls=(_BROKEN,))) as opened:
        reply = await ask(opened.model, with_weather())

    (call,) = reply.message.tool_calls
    assert call.name == "weather", call
    assert call.arguments is None, call
    assert call.written, f"nothing is said of what the model wrote: {call}"


@promise(CallsTools, ability="tool_calls")
async def a_call_that_was_cut_has_no_arguments(subject: ModelSubject) -> None:
    for written in (_BROKEN.written, ""):
        cut = CallsTools(calls=(replace(_BROKEN, written=written),), stop_reason=StopReason.LENGTH)
        async with subject.open(cut) as opened:
            reply = await ask(opened.model, with_weather())

        assert reply.stop_reason is StopReason.LENGTH, reply
        assert all(call.arguments is None for call in reply.message.tool_calls), reply


@promise(CallsTools, ability="tool_calls", observed=True)
async def a_call_can_be_answered(subject: ModelSubject) -> None:
    async with subject.open(CallsTools(calls=(_ROME, _PARIS))) as opened:
        request = with_weather()
        reply = await ask(opened.model, request)
        answers = [
            Message(role="tool", answers=call.id, text=f"answer {place}")
            for place, call in enumerate(reply.message.tool_calls)
        ]
        conversation = (*request.messages, reply.message, *answers)
        await ask(opened.model, replace(request, messages=conversation))

        arrived = opened.peer.received[-1].messages
    assert [message.text for message in arrived[-2:]] == ["answer 0", "answer 1"], arrived
    called = [call.id for call in arrived[-3].tool_calls]
    assert called == [message.answers for message in arrived[-2:]], arrived


@promise(CallsTools, ability="tool_calls", observed=True)
async def what_the_provider_wants_to_see_again_comes_back(subject: ModelSubject) -> None:
    """Also in another process: the message itself carries it."""
    conversation = await _answered(subject, _STATE)
    async with subject.open(CallsTools(calls=(_ROME,), state="other")) as opened:
        await ask(opened.model, conversation)

        (arrived,) = opened.peer.received
    assert arrived.messages[-2].provider_state == _STATE, arrived.messages[-2]


@promise(CallsTools, ability="tool_calls", observed=True)
async def what_another_provider_wrote_down_is_not_sent(subject: ModelSubject) -> None:
    conversation = await _answered(subject, _STATE)
    *before, called, answer = conversation.messages
    strange = [replace(called, provider_state=state) for state in ('{"by": "x:y"}', "{", "[1]")]
    for message in strange:
        async with subject.open(CallsTools(calls=(_ROME,))) as opened:
            await ask(opened.model, replace(conversation, messages=(*before, message, answer)))

            (arrived,) = opened.peer.received
        assert arrived.messages[-2].provider_state == "", arrived.messages[-2]


async def _answered(subject: ModelSubject, state: str) -> Request:
    """Have a tool called, and return the conversation with its answer."""
    request = with_weather()
    async with subject.open(CallsTools(calls=(_ROME,), state=state)) as opened:
        message = (await ask(opened.model, request)).message
    answer = Message(role="tool", answers=message.tool_calls[0].id, text="sunny")
    return replace(request, messages=(*request.messages, message, answer))
