"""Promises about what comes back: text as it arrives, why it ended, what it took."""

import json
from dataclasses import replace

import anyio

from assay.contracts.messages import StopReason, Usage
from tests.conformance.model.promise import promise
from tests.conformance.model.questions import DEADLINE_S, QUESTION, ask
from tests.conformance.model.subject import Answers, ModelSubject, Says

_PIECES = ("Hello", ", ", "world", ".\n", "  Bye ✓")


@promise(Answers)
async def a_question_is_answered(subject: ModelSubject) -> None:
    heard: list[str] = []
    async with subject.open(Answers()) as opened:
        reply = await ask(opened.model, on_text=heard.append)

    assert reply.message.role == "assistant", reply
    assert reply.message.text.strip(), reply
    assert "".join(heard) == reply.message.text, f"told {heard}, and returned {reply}"
    assert reply.model, "the reply does not say who answered"


@promise(Answers)
async def an_answer_is_told_in_pieces(subject: ModelSubject) -> None:
    heard: list[str] = []
    async with subject.open(Answers()) as opened:
        await ask(opened.model, on_text=heard.append)

    assert len(heard) > 1, f"all at once is not streaming: {heard}"


@promise(Answers)
async def an_answer_stops_before_a_stop_word(subject: ModelSubject) -> None:
    async with subject.open(Answers()) as opened:
        reply = await ask(opened.model, replace(QUESTION, stop=("o",)))

    assert "o" not in reply.message.text, reply
    assert reply.stop_reason is StopReason.ENDED, reply


@promise(Answers, ability="supports_json_schema")
async def an_answer_keeps_to_its_schema(subject: ModelSubject) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    async with subject.open(Answers()) as opened:
        reply = await ask(opened.model, replace(QUESTION, json_schema=schema))

    assert list(json.loads(reply.message.text)) == ["answer"], reply


@promise(Answers)
async def what_it_took_is_counted(subject: ModelSubject) -> None:
    async with subject.open(Answers()) as opened:
        reply = await ask(opened.model)

    assert reply.usage.calls == 1, reply.usage
    assert reply.usage.input_tokens > 0, reply.usage
    assert reply.usage.output_tokens > 0, reply.usage
    assert reply.usage.cached_input_tokens <= reply.usage.input_tokens, reply.usage


@promise(Answers)
async def an_answer_ends_at_the_length_asked_for(subject: ModelSubject) -> None:
    async with subject.open(Answers()) as opened:
        reply = await ask(opened.model, replace(QUESTION, max_output_tokens=2))

    assert reply.stop_reason is StopReason.LENGTH, reply


@promise(Answers)
async def one_model_answers_several_questions_at_once(subject: ModelSubject) -> None:
    texts: list[str] = []
    async with subject.open(Answers()) as opened:

        async def ask_and_keep() -> None:
            texts.append((await ask(opened.model)).message.text)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask_and_keep)

    assert all(texts), texts
    assert len(texts) == 3, texts


@promise(Says)
async def text_arrives_whole_and_in_order(subject: ModelSubject) -> None:
    heard: list[str] = []
    async with subject.open(Says(pieces=_PIECES)) as opened:
        reply = await ask(opened.model, on_text=heard.append)

    assert reply.message.text == "".join(_PIECES), reply
    assert "".join(heard) == reply.message.text, heard
    assert reply.message.tool_calls == (), reply
    assert reply.stop_reason is StopReason.ENDED, reply


@promise(Says)
async def text_is_told_before_the_answer_ends(subject: ModelSubject) -> None:
    heard: list[str] = []
    begun = anyio.Event()

    def listen(text: str) -> None:
        heard.append(text)
        begun.set()

    async with (
        subject.open(Says(pieces=("first", " second"), waits_after=1)) as opened,
        anyio.create_task_group() as tasks,
    ):

        async def ask_and_listen() -> None:
            await ask(opened.model, on_text=listen)

        tasks.start_soon(ask_and_listen)
        with anyio.fail_after(DEADLINE_S):
            await begun.wait()
        assert heard == ["first"], f"the peer said one piece, and told was {heard}"
        opened.peer.go_on()

    assert "".join(heard) == "first second", heard


@promise(Says)
async def the_reason_for_stopping_is_told(subject: ModelSubject) -> None:
    for reason in (StopReason.ENDED, StopReason.LENGTH, StopReason.FILTERED):
        async with subject.open(Says(pieces=("so",), stop_reason=reason)) as opened:
            reply = await ask(opened.model)

        assert reply.stop_reason is reason, f"it stopped for {reason}: {reply}"
        assert reply.message.text == "so", reply


@promise(Says)
async def a_reply_whose_length_went_into_reasoning_was_cut(subject: ModelSubject) -> None:
    async with subject.open(Says(pieces=(), stop_reason=StopReason.LENGTH)) as opened:
        reply = await ask(opened.model)

    assert (reply.message.text, reply.stop_reason) == ("", StopReason.LENGTH), reply


@promise(Says)
async def tokens_are_counted_as_the_provider_counts(subject: ModelSubject) -> None:
    used = Usage(input_tokens=1200, cached_input_tokens=1000, output_tokens=34, reasoning_tokens=20)
    async with subject.open(Says(pieces=("so",), usage=used)) as opened:
        reply = await ask(opened.model)

    # Only some formats report what was written to a cache.
    counted = replace(reply.usage, cost_usd=used.cost_usd, cache_write_tokens=0)
    assert counted == replace(used, calls=1), reply.usage


@promise(Says)
async def characters_survive_being_cut_into_bytes(subject: ModelSubject) -> None:
    text = "naïve, 日本語, 👩‍🚀, Ł"
    heard: list[str] = []
    async with subject.open(Says(pieces=tuple(text), splits_bytes=True)) as opened:
        reply = await ask(opened.model, on_text=heard.append)

    assert reply.message.text == text, reply
    assert "".join(heard) == text, heard


@promise(Says)
async def an_empty_answer_is_an_answer(subject: ModelSubject) -> None:
    heard: list[str] = []
    async with subject.open(Says(pieces=())) as opened:
        reply = await ask(opened.model, on_text=heard.append)

    assert reply.message.text == "", reply
    assert not "".join(heard), heard
    assert reply.stop_reason is StopReason.ENDED, reply


@promise(Says, ability="supports_prefill")
async def a_beginning_is_told_and_returned_once(subject: ModelSubject) -> None:
    heard: list[str] = []
    async with subject.open(Says(pieces=("def f():", "\n    pass\n"))) as opened:
        request = replace(QUESTION, prefill="```python\n")
        reply = await ask(opened.model, request, on_text=heard.append)

    assert reply.message.text == "```python\ndef f():\n    pass\n", reply
    assert "".join(heard) == reply.message.text, heard


@promise(Answers, ability="supports_prefill")
async def an_answer_begins_as_it_was_asked_to(subject: ModelSubject) -> None:
    beginning = "Ahoy there, my dear"
    async with subject.open(Answers()) as opened:
        reply = await ask(opened.model, replace(QUESTION, prefill=beginning))

    assert reply.message.text.startswith(beginning), reply
    assert reply.message.text.count(beginning) == 1, reply
    assert len(reply.message.text) > len(beginning), reply
