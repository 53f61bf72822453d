"""Build the model's messages from a session's history, within its context window. Pure."""

from typing import Final

from assay.agent.prompt_builder import prompt, system, user
from assay.chat.reply import CELL_TOOL, Block
from assay.contracts.chat import CellEnded, History, Turn
from assay.contracts.messages import Message, ModelInfo, ToolCall
from assay.text.formatting import trim

_CHARS_PER_TOKEN: Final = 3
_SHARE: Final = 0.6
"""The share of the context window for everything before the current turn."""
_ABOUT_CHARS: Final = 1_500
_OBSERVATION_CHARS: Final = 2_000
"""The maximum for the output of one cell from an earlier turn."""
_LINE_CHARS: Final = 240
_NAMES: Final = 40
_ANSWER: Final = "If this answers the question, say the answer in plain words without code."
_MEND: Final = "The cell failed. Write all of it again, corrected, as one ```python block."
_HOW: Final = "{how}"
"""Placeholder in the prompt for the instructions on how to run code."""
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
"""Small models follow examples better than instructions."""


def opening(
    history: History, info: ModelInfo, *, by_calls: bool = False, instructions: str = ""
) -> tuple[Message, ...]:
    """Build the messages: system prompt, earlier turns, and the request of the current turn.

    Models repeat the pattern that they see, so earlier cells appear as calls for models that use
    calls. `instructions` of the client application go into the system message.
    """
    *turns, now = history.turns
    told_first = _system(history, small=info.small, by_calls=by_calls)
    if instructions:
        told_first += f"\n\n# Instructions of the application\n{instructions}"
    first = system(told_first)
    room = int(info.context_tokens * _CHARS_PER_TOKEN * _SHARE) - len(first.text)
    told: list[tuple[Message, ...]] = []
    while turns:
        messages = _whole(turns[-1], by_calls=by_calls)
        size = sum(len(message.text) for message in messages)
        if size > room:
            break
        room -= size
        told.append(messages)
        turns.pop()
    recent = tuple(message for messages in reversed(told) for message in messages)
    example = _EXAMPLE if info.small and not by_calls else ()
    earlier = _in_short(turns, max_chars=max(room, _LINE_CHARS * 2))
    return (first, *example, *earlier, *recent, user(now.message))


def observed(observations: list[str], *, failed: bool, small: bool) -> Message:
    """Return the output of the cells of a reply; small models also get the next instruction."""
    following = (_MEND if failed else _ANSWER) if small else ""
    if len(observations) == 1:
        told = f"Output of the cell:\n{observations[0]}"
    else:
        told = "\n\n".join(
            f"Output of cell {number}:\n{observation}"
            for number, observation in enumerate(observations, 1)
        )
    return user(f"{told}\n\n{following}".rstrip())


def _system(history: History, *, small: bool, by_calls: bool) -> str:
    if by_calls:
        text = prompt("chat").replace(_HOW, prompt("chat_calls"))
    elif small:
        text = prompt("chat_small")
    else:
        text = prompt("chat").replace(_HOW, prompt("chat_blocks"))
    if history.files:
        about = "\n\n".join(
            f"## `{file.path}`\n{trim(file.about, max_chars=_ABOUT_CHARS)}"
            for file in history.files
        )
        text += f"\n\n# Files in the working directory\n{about}"
    if history.packages:
        text += "\n\n# Packages that were added\n" + ", ".join(history.packages)
    if names := history.names:
        text += "\n\n# Variables that are set\n" + ", ".join(names[-_NAMES:])
    return text


def _whole(turn: Turn, *, by_calls: bool) -> tuple[Message, ...]:
    messages: list[Message] = [user(turn.message)]
    thoughts = iter(turn.thoughts)
    for number, step in enumerate(turn.steps, 1):
        if isinstance(step, CellEnded):
            block = Block(before=next(thoughts, ""), code=step.code)
            output = trim(step.observation, max_chars=_OBSERVATION_CHARS)
            if by_calls:
                call = ToolCall(
                    id=f"cell-{turn.number}-{number}",
                    name=CELL_TOOL.name,
                    arguments={"code": block.code},
                )
                messages += (
                    Message(role="assistant", text=block.before, tool_calls=(call,)),
                    Message(role="tool", answers=call.id, text=output),
                )
            else:
                messages += (
                    Message(role="assistant", text=block.as_written),
                    user(f"Output of the cell:\n{output}"),
                )
        else:
            messages.append(Message(role="assistant", text=step.thought or f"(used {step.tool})"))
            output = trim(step.answer, max_chars=_OBSERVATION_CHARS)
            messages.append(user(f"Answer of `{step.tool}`:\n{output}"))
    messages.append(Message(role="assistant", text=turn.answer or "(no answer)"))
    return tuple(messages)


def _in_short(turns: list[Turn], *, max_chars: int) -> tuple[Message, ...]:
    """Summarize turns that do not fit, one line each; keep the first, which gives the topic."""
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
