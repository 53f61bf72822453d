import json
import re
from pathlib import Path

import anyio
import pytest

from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
    UsageError,
)
from assay.contracts.messages import Message, Price, Reply, Request, StopReason, Usage
from assay.models.budget import Budget, Caps, MeteredModel
from assay.models.scripted import ScriptedModel, ScriptLine, load_script
from tests.doubles import scripted_model as doubles
from tests.support.sources import ROOT

ASKED = Request(messages=(Message(role="user", text="go"),))
PAGE = ROOT / "docs" / "reference" / "scripted-model.md"


def script(folder: Path, *lines: str) -> Path:
    path = folder / "script.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def model_of(folder: Path, *lines: str) -> ScriptedModel:
    return ScriptedModel(load_script(script(folder, *lines)))


async def test_the_lines_are_said_in_order_and_what_was_asked_is_kept(tmp_path: Path) -> None:
    model = model_of(tmp_path, '{"text": "one"}', "", "# a remark", '{"text": "two"}')
    other = Request(messages=(Message(role="user", text="on"),))

    texts = [(await model.reply(request)).message.text for request in (ASKED, other)]

    assert texts == ["one", "two"]
    assert model.asked == [ASKED, other]


async def test_a_reply_has_the_usual_ending_unless_it_names_one(tmp_path: Path) -> None:
    model = model_of(
        tmp_path,
        '{"text": "done"}',
        '{"tool_calls": [{"name": "run"}]}',
        '{"text": "and th", "stop_reason": "length"}',
    )

    reasons = [(await model.reply(ASKED)).stop_reason for _ in range(3)]

    assert reasons == [StopReason.ENDED, StopReason.TOOL_CALLS, StopReason.LENGTH]


async def test_tool_calls_have_arguments_and_ids_of_their_own(tmp_path: Path) -> None:
    line = {"tool_calls": [{"name": "run", "arguments": {"a": [1]}}, {"name": "x", "id": "mine"}]}
    model = model_of(tmp_path, json.dumps(line), json.dumps(line))

    first, second = (await model.reply(ASKED)).message.tool_calls
    again, _ = (await model.reply(ASKED)).message.tool_calls

    assert (first.name, first.arguments, first.written) == ("run", {"a": [1]}, '{"a": [1]}')
    assert (second.name, second.arguments, second.id) == ("x", {}, "mine")
    assert first.id != again.id


async def test_arguments_that_are_a_string_are_what_a_model_wrote_instead(tmp_path: Path) -> None:
    model = model_of(tmp_path, '{"tool_calls": [{"name": "run", "arguments": "{\\"a\\": "}]}')

    (call,) = (await model.reply(ASKED)).message.tool_calls

    assert (call.arguments, call.written) == (None, '{"a": ')


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unavailable", ModelUnavailableError),
        ("refused", ModelRefusedError),
        ("overflow", ContextOverflowError),
        ("budget", BudgetExceededError),
    ],
)
async def test_an_error_is_raised_by_its_name(
    tmp_path: Path, name: str, kind: type[AssayError]
) -> None:
    model = model_of(tmp_path, json.dumps({"error": name, "message": "so it goes"}))

    with pytest.raises(kind, match="so it goes") as caught:
        await model.reply(ASKED)

    assert type(caught.value) is kind


async def test_an_error_may_say_when_to_come_back(tmp_path: Path) -> None:
    model = model_of(tmp_path, '{"error": "unavailable", "retry_after_s": 2}')

    with pytest.raises(ModelUnavailableError) as caught:
        await model.reply(ASKED)

    assert caught.value.retry_after_s == 2


async def test_an_error_with_text_is_an_answer_that_breaks_off(tmp_path: Path) -> None:
    model = model_of(tmp_path, '{"error": "unavailable", "text": "half an ans"}')
    heard: list[str] = []

    with pytest.raises(ModelUnavailableError):
        await model.reply(ASKED, on_text=heard.append)

    assert heard == ["half an ans"]


async def test_the_text_arrives_in_pieces(tmp_path: Path) -> None:
    heard: list[str] = []

    reply = await model_of(tmp_path, '{"text": "one\\ntwo\\n"}').reply(ASKED, on_text=heard.append)

    assert heard == ["one\n", "two\n"]
    assert reply.message.text == "one\ntwo\n"


async def test_a_script_that_is_at_its_end_says_so(tmp_path: Path) -> None:
    model = model_of(tmp_path, '{"text": "one"}')
    await model.reply(ASKED)

    with pytest.raises(ModelRefusedError, match="has 1 replies, and a request more came"):
        await model.reply(ASKED)


async def test_the_last_line_may_repeat(tmp_path: Path) -> None:
    model = model_of(tmp_path, '{"text": "one"}', '{"text": "more", "repeat": true}')

    texts = [(await model.reply(ASKED)).message.text for _ in range(4)]

    assert texts == ["one", "more", "more", "more"]


async def test_usage_is_what_the_line_says(tmp_path: Path) -> None:
    model = model_of(
        tmp_path, '{"text": "a", "usage": {"input_tokens": 7, "output_tokens": 2}}', '{"text": "b"}'
    )

    assert (await model.reply(ASKED)).usage == Usage(input_tokens=7, output_tokens=2, calls=1)
    assert (await model.reply(ASKED)).usage == Usage(calls=1)


async def test_facts_may_stand_before_the_first_reply(tmp_path: Path) -> None:
    info = '{"facts": {"tool_calls": false, "price": {"input_usd": 1, "output_usd": 5}}}'

    model = model_of(tmp_path, info, '{"text": "a"}')

    assert not model.info.tool_calls
    assert model.info.price == Price(input_usd=1.0, output_usd=5.0)
    assert (await model.reply(ASKED)).message.text == "a"


async def test_a_script_with_a_price_can_run_out_of_money(tmp_path: Path) -> None:
    info = '{"facts": {"price": {"input_usd": 1000, "output_usd": 5000}}}'
    model = MeteredModel(model_of(tmp_path, info, '{"text": "a"}'), Budget(Caps(usd=0.01)))

    with pytest.raises(BudgetExceededError):
        await model.reply(ASKED)


async def test_a_reply_may_take_its_time(tmp_path: Path) -> None:
    model = model_of(tmp_path, '{"text": "late", "delay_s": 50}')

    with anyio.move_on_after(0) as scope:
        await model.reply(ASKED)

    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON: .* at column 2"),
        ("[1]", "a line has to be a JSON object"),
        ("{}", "a reply needs text, tool_calls, stop_reason or error"),
        ('{"txt": "a"}', "there is no 'txt'"),
        ('{"text": 5}', "text: input should be a valid string"),
        ('{"text": "a", "stop_reason": "bored"}', "stop_reason: input should be 'ended', "),
        ('{"error": "OSError"}', "error: input should be 'unavailable', "),
        ('{"error": "refused", "tool_calls": [{"name": "x"}]}', "an error has no tool_calls"),
        ('{"text": "a", "message": "b"}', "message and retry_after_s belong to an error"),
        ('{"tool_calls": [{"arguments": {}}]}', r"tool_calls\.0\.name: field required"),
        ('{"tool_calls": [{"name": "x", "arguments": [1]}]}', r"tool_calls\.0\.arguments"),
        ('{"text": "a", "usage": {"input_tokens": -1}}', r"usage\.input_tokens: "),
        ('{"text": "a", "delay_s": 1e9}', "delay_s: "),
        ('{"facts": {}}', "there is no 'facts'"),
    ],
)
def test_a_bad_line_is_named_with_its_place_and_what_is_wrong(
    tmp_path: Path, line: str, told: str
) -> None:
    path = script(tmp_path, '{"text": "fine"}', "", line)

    with pytest.raises(UsageError, match=f"{re.escape(str(path))}:3: {told}") as caught:
        load_script(path)

    assert caught.value.hint


@pytest.mark.parametrize("info", ['"big"', '{"size": 3}', '{"context_tokens": "many"}'])
def test_facts_that_are_none_are_refused(tmp_path: Path, info: str) -> None:
    path = script(tmp_path, f'{{"facts": {info}}}', '{"text": "a"}')

    with pytest.raises(UsageError, match=":1: "):
        load_script(path)


def test_nothing_may_follow_a_line_that_repeats(tmp_path: Path) -> None:
    path = script(tmp_path, '{"text": "a", "repeat": true}', '{"text": "b"}')

    with pytest.raises(UsageError, match=":2: nothing comes after"):
        load_script(path)


@pytest.mark.parametrize("content", [b"", b"\n# nothing\n", b"\xff\xfe"])
def test_a_script_without_a_reply_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "script.jsonl"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=r"script\.jsonl"):
        load_script(path)


def test_a_script_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or directory".capitalize()):
        load_script(tmp_path / "nowhere.jsonl")


def examples() -> list[str]:
    return re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", examples())
async def test_the_examples_of_the_reference_work(tmp_path: Path, example: str) -> None:
    loaded = load_script(script(tmp_path, example))
    model = ScriptedModel(loaded)

    for said in loaded.lines:
        if said.error:
            with pytest.raises(AssayError):
                await model.reply(ASKED)
        else:
            with anyio.fail_after(60):
                assert isinstance(await model.reply(ASKED), Reply)


def test_the_reference_names_every_field() -> None:
    text = PAGE.read_text()

    assert examples()
    assert [name for name in ScriptLine.model_fields if f"| `{name}` |" not in text] == []


async def test_the_double_for_tests_says_what_it_is_told_and_fails_when_asked_for_more() -> None:
    gone = ModelUnavailableError("gone")
    model = doubles.ScriptedModel([doubles.says("one"), gone, doubles.calls_tool("run", {"a": 1})])
    heard: list[str] = []

    first = await model.reply(ASKED, on_text=heard.append)
    with pytest.raises(ModelUnavailableError):
        await model.reply(ASKED)
    last = await model.reply(ASKED)

    assert (first.message.text, heard) == ("one", ["one"])
    assert last.message.tool_calls[0].arguments == {"a": 1}
    assert model.asked == [ASKED] * 3
    with pytest.raises(AssertionError, match="more often than was scripted"):
        await model.reply(ASKED)
