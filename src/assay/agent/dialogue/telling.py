"""What the model is shown of a conversation, as much of it as the model can read. Pure."""

from typing import Final

from assay.agent.context import prompt, system, user
from assay.agent.dialogue.reading import Said
from assay.agent.trimming import trim
from assay.contracts.conversation import Message, ModelFacts
from assay.contracts.dialogue import CellEnded
from assay.contracts.dialogue_history import History, Turn

_CHARS_PER_TOKEN: Final = 3
_SHARE: Final = 0.6
"""Of what a model can read, for everything before the turn that is under way."""
_ABOUT_CHARS: Final = 1_500
_OBSERVATION_CHARS: Final = 2_000
"""Of what a cell printed in an earlier turn."""
_LINE_CHARS: Final = 240
_NAMES: Final = 40
_ANSWER: Final = "If this answers the question, say the answer in plain words without code."
_MEND: Final = "The cell failed. Write all of it again, corrected, as one ```python block."
CELL_BEGINS: Final = "```python\n"
_EXAMPLE: Final = (
    user("How many rows does planets.csv have?"),
    Message(role="assistant", text='```python\nprint(len(pd.read_csv("planets.csv")))\n```'),
    user("Output of the cell:\n8"),
    Message(role="assistant", text="It has 8 rows."),
    user("Draw the mass of each as a bar chart."),
    Message(
        role="assistant",
        text=(
            '```python\nplanets = pd.read_csv("planets.csv")\n'
            'planets.plot.bar(x="name", y="mass")\nplt.ylabel("mass")\n```'
        ),
    ),
    user("Output of the cell:\n[figure shown]"),
    Message(role="assistant", text="Here is the chart of the masses."),
)
"""A small model does what it has seen done rather than what it is told."""


def opening(history: History, facts: ModelFacts) -> tuple[Message, ...]:
    """Tell what the conversation is, what was said before, and what is asked in its last turn."""
    *turns, now = history.turns
    first = system(_system(history, small=facts.local))
    room = int(facts.context_tokens * _CHARS_PER_TOKEN * _SHARE) - len(first.text)
    told: list[tuple[Message, ...]] = []
    while turns:
        messages = _whole(turns[-1])
        size = sum(len(message.text) for message in messages)
        if size > room:
            break
        room -= size
        told.append(messages)
        turns.pop()
    recent = tuple(message for messages in reversed(told) for message in messages)
    example = _EXAMPLE if facts.local else ()
    earlier = _in_short(turns, max_chars=max(room, _LINE_CHARS * 2))
    return (first, *example, *earlier, *recent, user(now.message))


def observed(observation: str, *, failed: bool, small: bool) -> Message:
    """Tell what came of a cell, and, to a model that needs it, what is expected next."""
    following = (_MEND if failed else _ANSWER) if small else ""
    return user(f"Output of the cell:\n{observation}\n\n{following}".rstrip())


def _system(history: History, *, small: bool) -> str:
    text = prompt("chat_small" if small else "chat")
    if history.files:
        about = "\n\n".join(
            f"## `{file.path}`\n{trim(file.about, max_chars=_ABOUT_CHARS)}"
            for file in history.files
        )
        text += f"\n\n# Files in the working directory\n{about}"
    if names := history.names:
        text += "\n\n# Variables that are set\n" + ", ".join(names[-_NAMES:])
    return text


def _whole(turn: Turn) -> tuple[Message, ...]:
    messages: list[Message] = [user(turn.message)]
    thoughts = iter(turn.thoughts)
    for step in turn.steps:
        if isinstance(step, CellEnded):
            said = Said(thought=next(thoughts, ""), code=step.code)
            messages.append(Message(role="assistant", text=said.as_written))
            output = trim(step.observation, max_chars=_OBSERVATION_CHARS)
            messages.append(user(f"Output of the cell:\n{output}"))
        else:
            messages.append(Message(role="assistant", text=step.thought or f"(used {step.tool})"))
            output = trim(step.answer, max_chars=_OBSERVATION_CHARS)
            messages.append(user(f"Answer of `{step.tool}`:\n{output}"))
    messages.append(Message(role="assistant", text=turn.answer or "(no answer)"))
    return tuple(messages)


def _in_short(turns: list[Turn], *, max_chars: int) -> tuple[Message, ...]:
    """Tell turns that no longer fit in a line each; the first is what it is all about."""
    if not turns:
        return ()
    lines = [_line(turn) for turn in turns]
    first, rest = lines[0], lines[1:]
    left = max_chars - len(first)
    kept: list[str] = []
    for line in reversed(rest):
        if len(line) > left:
            break
        kept.append(line)
        left -= len(line)
    gap = ["- (more of the same)"] if len(kept) < len(rest) else []
    text = "\n".join(["What was said earlier, in short:", first, *gap, *reversed(kept)])
    return (user(text), Message(role="assistant", text="I remember."))


def _line(turn: Turn) -> str:
    asked = " ".join(turn.message.split())[:_LINE_CHARS]
    answered = " ".join(turn.answer.split())[:_LINE_CHARS]
    return f"- asked: {asked} — answered: {answered or 'nothing'}"
