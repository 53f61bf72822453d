"""Pieces of a reply, put together."""

import pytest

from assay.contracts.messages import Message, Request, StopReason, ToolCall
from assay.contracts.ports import ignore_text
from assay.models.stream_builder import ReplyDraft, arguments_in, arguments_to_send

REQUEST = Request(messages=(Message(role="user", text="hello"),))


def test_a_beginning_is_told_with_the_first_piece_and_not_before() -> None:
    heard: list[str] = []
    draft = ReplyDraft(REQUEST, heard.append, prefill="de")
    assert heard == []

    draft.add_text("f")

    assert heard == ["de", "f"]
    assert draft.finish("m", StopReason.ENDED, by="a:m").message.text == "def"


def test_a_beginning_is_the_reply_where_nothing_follows() -> None:
    heard: list[str] = []
    reply = ReplyDraft(REQUEST, heard.append, prefill="all").finish("m", StopReason.ENDED, by="a:m")

    assert (reply.message.text, heard) == ("all", ["all"])


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (("\n", "    pass"), "x:\n    pass"),
        (("\n    pass",), "x:\n    pass"),
        (("    pass",), "x:\n    pass"),
        (("y", "\n"), "x:\ny\n"),
        (("\n", "\n", "y"), "x:\n\ny"),
    ],
)
def test_the_unsent_end_of_a_beginning_is_not_doubled(pieces: tuple[str, ...], text: str) -> None:
    draft = ReplyDraft(REQUEST, ignore_text, prefill="x:\n", unsent="\n")
    for piece in pieces:
        draft.add_text(piece)

    assert draft.finish("m", StopReason.ENDED, by="a:m").message.text == text


def test_calls_that_all_claim_to_be_the_first_are_told_apart_by_their_ids() -> None:
    draft = ReplyDraft(REQUEST, ignore_text)
    for place in ("a", "b", "c"):
        draft.add_call(0, id=place, name="look", written="{}")

    calls = draft.finish("m", StopReason.ENDED, by="a:m").message.tool_calls

    assert [(call.id, call.written) for call in calls] == [("a", "{}"), ("b", "{}"), ("c", "{}")]


def test_calls_without_ids_are_given_some_that_no_other_turn_has() -> None:
    def ids(request: Request) -> set[str]:
        draft = ReplyDraft(request, ignore_text)
        draft.add_call(0, name="look")
        draft.add_call(1, name="look")
        return {
            call.id for call in draft.finish("m", StopReason.ENDED, by="a:m").message.tool_calls
        }

    first = ids(REQUEST)
    second = ids(Request(messages=REQUEST.messages * 3))

    assert len(first | second) == 4


def test_a_reply_with_calls_stopped_for_them_unless_it_was_cut() -> None:
    def reason(given: StopReason) -> StopReason:
        draft = ReplyDraft(REQUEST, ignore_text)
        draft.add_call(0, name="look")
        return draft.finish("m", given, by="a:m").stop_reason

    assert reason(StopReason.ENDED) is StopReason.TOOL_CALLS
    assert reason(StopReason.LENGTH) is StopReason.LENGTH


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (" \n", {}),
        ('{"a": ', None),
        ("[1]", None),
        ('"text"', None),
        ("null", None),
        ("look(a=1)", None),
    ],
)
def test_only_objects_are_arguments(written: str, arguments: object) -> None:
    assert arguments_in(written) == arguments


def test_what_a_model_wrote_is_sent_back_inside_an_object() -> None:
    call = ToolCall(id="1", name="look", arguments=None, written='{"a": ')

    assert arguments_to_send(call) == {"not_valid_json": '{"a": '}
