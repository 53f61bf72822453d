"""Compaction of long histories: what stays, and what loses its end."""

from dataclasses import replace

from assay.agent.compaction import ANSWERS_END, compacted
from assay.contracts.messages import Message, ModelInfo, ToolCall

INFO = ModelInfo(context_tokens=8_000, max_output_tokens=1_000, tool_calls=True, price=None)
GOAL = (Message(role="system", text="You program."), Message(role="user", text="# Goal\n" * 50))
PLAN = Message(role="assistant", text="1. read\n2. write\n" * 20)


def turn(number: int, *, written: str = "", answer: str = "") -> tuple[Message, Message]:
    call = ToolCall(id=f"c{number}", name="write_file", arguments={"path": "a", "text": written})
    return (
        Message(role="assistant", text=f"decision {number}", tool_calls=(call,)),
        Message(role="tool", answers=f"c{number}", text=answer or "Changed `a`."),
    )


def test_a_short_history_is_left_alone() -> None:
    messages = (*GOAL, PLAN, *turn(1))

    assert compacted(messages, INFO) == messages


def test_arguments_of_old_calls_count_and_are_cut() -> None:
    turns = [message for number in range(12) for message in turn(number, written="x" * 3_000)]

    short = compacted((*GOAL, PLAN, *turns), INFO)

    first, last = short[3].tool_calls[0], short[-2].tool_calls[0]
    assert first.arguments is not None
    assert last.arguments is not None
    assert len(first.arguments["text"]) < 300
    assert first.arguments["path"] == "a"
    assert len(last.arguments["text"]) == 3_000


def test_goal_plan_decisions_and_the_latest_failures_stay() -> None:
    report = Message(role="user", text="`pytest`: 3 of 4 tests failed. " + "E assert " * 200)
    before = [message for number in range(6) for message in turn(number, answer="x" * 4_000)]
    after = [message for number in range(6, 12) for message in turn(number, answer="x" * 4_000)]

    short = compacted((*GOAL, PLAN, *before, report, *after), INFO)

    assert short[:3] == (*GOAL, PLAN)
    assert report in short
    assert [f"decision {number}" for number in range(12)] == [
        message.text for message in short[3:] if message.role == "assistant"
    ]
    assert sum(len(message.text) for message in short) < INFO.context_tokens * 3 * 0.7


def test_answers_in_plain_text_are_no_report() -> None:
    answer = Message(role="user", text=f"{'x' * 9_000}\n\n(3 replies {ANSWERS_END}")
    asks = Message(role="assistant", text="RUN: ls")
    messages = (*GOAL, PLAN, *([asks, answer] * 6))

    short = compacted(messages, INFO)

    assert len(short[4].text) < 300


def test_a_compacted_history_stays_the_same_for_some_turns() -> None:
    turns = [message for number in range(10) for message in turn(number, answer="x" * 2_000)]
    short = compacted((*GOAL, PLAN, *turns), INFO)

    longer = (*short, *turn(11))

    assert short != (*GOAL, PLAN, *turns)
    assert compacted(longer, INFO) == longer


def test_signed_reasoning_stays_with_its_message() -> None:
    signed = [
        replace(message, provider_state="signed") if message.role == "assistant" else message
        for number in range(10)
        for message in turn(number, answer="x" * 3_000)
    ]

    short = compacted((*GOAL, PLAN, *signed), INFO)

    assert {message.provider_state for message in short[3:] if message.role == "assistant"} == {
        "signed"
    }
