import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
    UsageError,
)
from assay.contracts.messages import (
    Message,
    Reply,
    Request,
    StopReason,
    ToolCall,
    ToolSpec,
    Usage,
)
from assay.contracts.ports import OnText, ignore_text
from assay.files import JsonlFile
from assay.models.message_json import key_of, reply_from_json, reply_to_json, request_to_json
from assay.models.recording import (
    RecordingFile,
    RecordingModel,
    ReplayingModel,
    open_recording,
    read_recording,
)
from tests.doubles.scripted_model import INFO, ScriptedModel, calls_tool, says
from tests.support.apart import run_apart

SAMPLE = Path(__file__).parent / "samples" / "recording_format_1.jsonl"
"""Written by the first version; whatever comes later has to read it."""

TOOL = ToolSpec(name="run", description="Run it.", parameters={"type": "object"})


def asking(text: str, **more: Any) -> Request:
    return Request(messages=(Message(role="user", text=text),), **more)


async def record(
    path: Path, *exchanges: tuple[Request, Reply | AssayError], model: str = "acme:m1"
) -> None:
    scripted = ScriptedModel([answer for _, answer in exchanges], name=model)
    async with open_recording(path, model=model, info=INFO) as file:
        for request, answer in exchanges:
            if isinstance(answer, AssayError):
                with pytest.raises(type(answer)):
                    await RecordingModel(scripted, file).reply(request)
            else:
                await RecordingModel(scripted, file).reply(request)


async def test_a_recorded_run_is_played_back_as_it_was(tmp_path: Path) -> None:
    whole = asking("run it", tools=(TOOL,), temperature=0.8, stop=("```",), prefill="a")
    called = calls_tool("run", {"code": "print('ä')"}, text="let me\nsee")
    broken = ToolCall(id="2", name="run", arguments=None, written='{"code": ')
    garbled = replace(says("half"), stop_reason=StopReason.LENGTH)
    garbled = replace(garbled, message=replace(garbled.message, tool_calls=(broken,)))
    used = says("yes", usage=Usage(input_tokens=3, output_tokens=1, calls=1, cost_usd=0.25))
    exchanges = [(asking("hello"), used), (whole, called), (asking("again"), garbled)]
    await record(tmp_path, *exchanges)

    model = ReplayingModel(read_recording(tmp_path))

    assert [await model.reply(request) for request, _ in exchanges] == [
        answer for _, answer in exchanges
    ]
    assert model.name == "acme:m1"
    assert model.info == INFO
    assert model.asked == [request for request, _ in exchanges]


async def test_the_order_does_not_matter_when_it_is_strict(tmp_path: Path) -> None:
    await record(tmp_path, (asking("a"), says("1")), (asking("b"), says("2")))

    model = ReplayingModel(read_recording(tmp_path))

    assert (await model.reply(asking("b"))).message.text == "2"
    assert (await model.reply(asking("a"))).message.text == "1"


async def test_the_same_request_gets_its_answers_in_the_order_of_asking(tmp_path: Path) -> None:
    await record(tmp_path, *[(asking("sample", temperature=0.8), says(text)) for text in "xyz"])

    model = ReplayingModel(read_recording(tmp_path))
    texts = [(await model.reply(asking("sample", temperature=0.8))).message.text for _ in "xyz"]

    assert texts == ["x", "y", "z"]
    with pytest.raises(ModelRefusedError, match="recorded 3 times and asked for once more"):
        await model.reply(asking("sample", temperature=0.8))


@pytest.mark.parametrize(
    "error",
    [
        ModelUnavailableError("come later", retry_after_s=2.5),
        ModelUnavailableError("gone"),
        ModelRefusedError("never", hint="ask for something else"),
        ContextOverflowError("too long"),
        BudgetExceededError("no money"),
    ],
)
async def test_a_failure_is_played_back_too(tmp_path: Path, error: AssayError) -> None:
    await record(tmp_path, (asking("a"), error), (asking("a"), says("then")))

    model = ReplayingModel(read_recording(tmp_path))
    with pytest.raises(type(error)) as caught:
        await model.reply(asking("a"))

    assert type(caught.value) is type(error)
    assert (str(caught.value), caught.value.hint) == (str(error), error.hint)
    assert getattr(caught.value, "retry_after_s", None) == getattr(error, "retry_after_s", None)
    assert (await model.reply(asking("a"))).message.text == "then"


async def test_the_text_is_told_again_in_pieces(tmp_path: Path) -> None:
    await record(tmp_path, (asking("a"), says("one\ntwo\n\nthree")))
    heard: list[str] = []

    await ReplayingModel(read_recording(tmp_path)).reply(asking("a"), on_text=heard.append)

    assert len(heard) > 1
    assert "".join(heard) == "one\ntwo\n\nthree"


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (asking("count to sex"), r"messages\[0\].text is 'count to six' instead of 'count to sex'"),
        (asking("count to six", temperature=0.5), "temperature is nothing instead of 0.5"),
        (asking("count to six", stop=("x",)), r"stop\[0\] is nothing instead of 'x'"),
        (asking("a" * 90 + "b"), "request 2, where .* is …'a+c' instead of …'a+b'"),
    ],
)
async def test_what_was_not_recorded_is_refused_with_the_nearest_difference(
    tmp_path: Path, request_: Request, told: str
) -> None:
    far = Request(messages=(Message(role="system", text="q"), Message(role="user", text="z")))
    await record(
        tmp_path,
        (asking("count to six"), says("1")),
        (asking("a" * 90 + "c"), says("2")),
        (far, says("3")),
    )

    with pytest.raises(ModelRefusedError, match=told):
        await ReplayingModel(read_recording(tmp_path)).reply(request_)


async def test_lenient_gives_the_answers_in_order_whatever_is_asked(tmp_path: Path) -> None:
    await record(tmp_path, (asking("a"), says("1")), (asking("b"), says("2")))

    model = ReplayingModel(read_recording(tmp_path), matching="lenient")

    assert (await model.reply(asking("other"))).message.text == "1"
    assert (await model.reply(asking("a"))).message.text == "2"
    with pytest.raises(ModelRefusedError, match="has 2 answers, and request 3 came"):
        await model.reply(asking("a"))


async def test_a_fallback_is_asked_for_what_was_not_recorded(tmp_path: Path) -> None:
    await record(tmp_path, (asking("a"), says("1")))
    fallback = ScriptedModel([says("new")])

    model = ReplayingModel(read_recording(tmp_path), fallback=fallback)

    assert (await model.reply(asking("b"))).message.text == "new"
    assert (await model.reply(asking("a"))).message.text == "1"
    assert fallback.asked == [asking("b")]


async def test_a_recording_is_gone_on_with(tmp_path: Path) -> None:
    await record(tmp_path, (asking("a"), says("1")), (asking("b"), says("2")))
    await record(tmp_path, (asking("a"), says("3")))

    answers = read_recording(tmp_path).answers

    assert [(answer.asked, answer.occurrence) for answer in answers] == [(1, 1), (2, 1), (3, 2)]


async def test_a_line_that_a_crash_cut_off_is_left_out_and_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    await record(file, (asking("a"), says("1")), (asking("b"), says("2")))
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])

    assert [answer.asked for answer in read_recording(file).answers] == [1]

    await record(file, (asking("b"), says("2")))

    assert file.read_bytes() == whole


async def test_a_recording_cut_anywhere_can_be_read_and_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    await record(file, (asking("a"), says("1")))
    whole = file.read_bytes()
    header_size = whole.index(b"\n") + 1

    for size in range(0, len(whole), 7):
        file.write_bytes(whole[:size])
        if size >= header_size:
            assert read_recording(file).answers == ()
        await record(file, (asking("a"), says("1")))
        assert file.read_bytes() == whole


async def test_damage_in_the_middle_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    await record(file, (asking("a"), says("1")), (asking("b"), says("2")))
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], lines[1][:-9], *lines[2:]]))

    with pytest.raises(UsageError, match=r"run\.jsonl:2: .* damaged"):
        read_recording(file)


@pytest.mark.parametrize(
    "damage",
    [
        lambda fields: fields.pop("reply"),
        lambda fields: fields["reply"].update(stop_reason="bored"),
        lambda fields: fields.update(asked="first"),
        lambda fields: fields.update(error={"kind": "os.system", "message": "x"}),
    ],
)
async def test_a_line_that_says_something_else_is_named_too(
    tmp_path: Path, damage: Callable[[dict[str, Any]], object]
) -> None:
    file = tmp_path / "run.jsonl"
    await record(file, (asking("a"), says("1")))
    header, line = file.read_text().splitlines()
    fields = json.loads(line)
    damage(fields)
    file.write_text(f"{header}\n{json.dumps(fields)}\n")

    with pytest.raises(UsageError, match=r"run\.jsonl:2: "):
        read_recording(file)


@pytest.mark.parametrize("content", ["", "{}\n", "hello\n", '{"assay_recording": 1}\n', "[]\n"])
async def test_something_else_is_no_recording(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(content)

    with pytest.raises(UsageError):
        read_recording(file)


@pytest.mark.parametrize("content", ["dear diary\n", "dear diary", '{"a": 1}\n{"b"'])
async def test_a_file_that_is_no_recording_is_not_touched(tmp_path: Path, content: str) -> None:
    file = tmp_path / "diary.jsonl"
    file.write_text(content)

    with pytest.raises(UsageError):
        await record(file, (asking("a"), says("1")))

    assert file.read_text() == content


async def test_another_model_is_not_recorded_into_the_same_file(tmp_path: Path) -> None:
    await record(tmp_path, (asking("a"), says("1")))

    with pytest.raises(UsageError, match="is a recording of 'acme:m1', not of 'acme:m2'"):
        await record(tmp_path, (asking("a"), says("1")), model="acme:m2")


async def test_a_later_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    await record(file)
    file.write_text(file.read_text().replace('"assay_recording": 1', '"assay_recording": 2'))

    with pytest.raises(UsageError, match="format 2 of recordings; this is 1"):
        read_recording(file)


async def test_no_recording_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no recording"):
        read_recording(tmp_path / "nowhere")


async def test_a_recording_is_for_its_owner_only(tmp_path: Path) -> None:
    await record(tmp_path / "run", (asking("a"), says("1")))

    assert (tmp_path / "run" / "recording.jsonl").stat().st_mode & 0o777 == 0o600


class FullDisk(JsonlFile):
    """A file on a disk without room."""

    def append(self, line: bytes, *, durable: bool = False) -> None:
        del line, durable
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_disk_that_is_full_is_said_and_not_passed_over(tmp_path: Path) -> None:
    file = FullDisk(tmp_path / "recording.jsonl")
    model = RecordingModel(ScriptedModel([says("1")]), RecordingFile(file, ()))

    with pytest.raises(ModelUnavailableError, match="could not be recorded: No space left"):
        await model.reply(asking("a"))
    file.close()


async def test_only_a_file_can_be_recorded_to(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").symlink_to("/dev/zero")

    with pytest.raises(UsageError, match="is not a file"):
        await record(tmp_path / "run.jsonl")


async def test_answers_that_come_at_once_are_each_a_whole_line(tmp_path: Path) -> None:
    class Slow(ScriptedModel):
        async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
            del on_text
            text = request.messages[0].text
            for _ in range(20 - int(text)):
                await anyio.lowlevel.checkpoint()
            return says(text * 5000)

    async with open_recording(tmp_path, model="m", info=INFO) as file:
        model = RecordingModel(Slow([]), file)
        async with anyio.create_task_group() as tasks:
            for place in range(20):
                tasks.start_soon(model.reply, asking(str(place)))

    answers = read_recording(tmp_path).answers
    assert [answer.asked for answer in answers] == list(range(1, 21))
    assert [answer.request["messages"][0]["text"] for answer in answers] == [
        str(place) for place in range(20)
    ]


async def test_a_cancelled_call_leaves_no_trace(tmp_path: Path) -> None:
    class Waits(ScriptedModel):
        async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
            scope.cancel()
            await anyio.sleep_forever()
            return await super().reply(request, on_text=on_text)

    async with open_recording(tmp_path, model="m", info=INFO) as file:
        with anyio.CancelScope() as scope:
            await RecordingModel(Waits([]), file).reply(asking("a"))
        await RecordingModel(ScriptedModel([says("1")]), file).reply(asking("a"))

    model = ReplayingModel(read_recording(tmp_path))
    assert (await model.reply(asking("a"))).message.text == "1"


async def test_the_first_format_can_still_be_read() -> None:
    recording = read_recording(SAMPLE)
    model = ReplayingModel(recording)

    first = await model.reply(
        asking("Reply with the single word: ready", max_output_tokens=16, temperature=0.0)
    )

    assert recording.model == "openai:gpt-6.1-sol"
    assert (first.message.text, first.usage.cost_usd) == ("ready", 0.00012)
    assert [type(answer.outcome).__name__ for answer in recording.answers] == [
        "Reply",
        "Reply",
        "ModelUnavailableError",
    ]


def test_the_keys_of_the_first_format_are_still_found() -> None:
    answers = read_recording(SAMPLE).answers

    assert [answer.key for answer in answers] == [key_of(answer.request) for answer in answers]


def test_what_says_the_same_has_the_same_key() -> None:
    one = asking("a", tools=(replace(TOOL, parameters={"a": 1, "b": 2}),), temperature=0)
    other = asking("a", tools=(replace(TOOL, parameters={"b": 2, "a": 1}),), temperature=0.0)

    assert key_of(request_to_json(one)) == key_of(request_to_json(other))
    assert key_of(request_to_json(one)) != key_of(request_to_json(asking("a")))


# Surrogates are in it: models do write halves of pairs.
anything = st.text(st.characters(), max_size=30)


@given(
    reply=st.builds(
        Reply,
        message=st.builds(
            Message,
            role=st.just("assistant"),
            text=anything,
            tool_calls=st.lists(
                st.builds(
                    ToolCall,
                    id=anything,
                    name=anything,
                    arguments=st.none() | st.dictionaries(anything, anything, max_size=3),
                    written=anything,
                ),
                max_size=2,
            ).map(tuple),
        ),
        stop_reason=st.sampled_from(StopReason),
        usage=st.builds(
            Usage,
            input_tokens=st.integers(0, 10**6),
            calls=st.integers(0, 3),
            cost_usd=st.none() | st.floats(0, 10),
        ),
        model=anything,
    )
)
def test_any_reply_survives_the_way_to_json_and_back(reply: Reply) -> None:
    assert reply_from_json(json.loads(json.dumps(reply_to_json(reply)))) == reply


async def test_half_a_surrogate_pair_can_be_recorded(tmp_path: Path) -> None:
    await record(tmp_path, (asking("\ud83d"), says("\ude00")))

    reply = await ReplayingModel(read_recording(tmp_path)).reply(asking("\ud83d"))

    assert reply.message.text == "\ude00"


def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    run_apart(record, tmp_path, (asking("a"), says("1")))

    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_what_a_provider_wants_to_see_again_is_recorded_and_played_back(
    tmp_path: Path,
) -> None:
    called = calls_tool("run")
    called = replace(called, message=replace(called.message, provider_state='{"by": "acme:m1"}'))
    then = Request(messages=(Message(role="user", text="a"), called.message))
    await record(tmp_path, (asking("a"), called), (then, says("done")))

    model = ReplayingModel(read_recording(tmp_path))
    again = await model.reply(asking("a"))
    replayed = Request(messages=(Message(role="user", text="a"), again.message))

    assert again.message == called.message
    assert (await model.reply(replayed)).message.text == "done"


@pytest.mark.parametrize("not_charged", [True, False])
async def test_whether_a_failure_cost_something_is_recorded(
    tmp_path: Path, *, not_charged: bool
) -> None:
    error = ModelUnavailableError("500", not_charged=not_charged)
    await record(tmp_path, (asking("a"), error))

    with pytest.raises(ModelUnavailableError) as caught:
        await ReplayingModel(read_recording(tmp_path)).reply(asking("a"))

    assert caught.value.not_charged is not_charged


async def test_mappings_of_any_kind_are_recorded(tmp_path: Path) -> None:
    tool = replace(TOOL, parameters=MappingProxyType({"type": "object", "\ud800": ()}))
    request = asking("a", tools=(tool,), json_schema=MappingProxyType({"type": "object"}))
    await record(tmp_path, (request, says("1")))

    reply = await ReplayingModel(read_recording(tmp_path)).reply(request)

    assert reply.message.text == "1"
