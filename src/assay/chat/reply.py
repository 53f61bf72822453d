"""Parse a chat reply into cells to run and text. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_RUN: Final = frozenset({"python", "py", "python3", "ipython"})
"""Labels of blocks that are run; a block with any other label, such as `python example`, is not."""
_OPENS: Final = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})(?P<label>.*)")
_FENCE: Final = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Code to run."""

    before: str
    """The text between the previous block and this one."""
    code: str

    @property
    def as_written(self) -> str:
        before = f"{self.before}\n\n" if self.before else ""
        return f"{before}{_FENCE}python\n{self.code}\n{_FENCE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One reply, split into text and code blocks."""

    text: str
    """The complete text."""
    blocks: tuple[Block, ...] = ()
    after: str = ""
    """The text after the last block; the complete text if there is no block."""

    @property
    def prose(self) -> str:
        """Return the text, with code that is displayed but not run."""
        parts = (*(block.before for block in self.blocks), self.after)
        return "\n\n".join(part for part in parts if part)

    @property
    def as_written(self) -> str:
        """Return the version of the reply that goes into the history.

        Text after the last block is dropped: the model wrote it before it saw the output.
        """
        if not self.blocks:
            return self.text
        return "\n\n".join(block.as_written for block in self.blocks)


def say_only(text: str) -> Said:
    """Read a reply whose code blocks do not run."""
    return Said(text=text.strip(), after=text.strip())


def read_reply(text: str) -> Said:
    """Separate the Python blocks from the text around them."""
    blocks: list[Block] = []
    words: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        opened = _OPENS.fullmatch(line)
        if opened is None or "`" in opened["label"]:
            words.append(line)
            continue
        inside, end = _inside(lines, opened["fence"], len(opened["indent"]))
        code = "\n".join(inside).strip("\n")
        if opened["label"].strip().lower() in _RUN and code.strip():
            blocks.append(Block(before="\n".join(words).strip(), code=code))
            words.clear()
        else:
            words += [line, *inside, end]
    return Said(text=text.strip(), blocks=tuple(blocks), after="\n".join(words).strip())


def _inside(lines: Iterator[str], fence: str, indent: int) -> tuple[list[str], str]:
    """Return the lines of a block and its closing line, which is empty if the block is cut off."""
    inside: list[str] = []
    closes = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*")
    for line in lines:
        if closes.fullmatch(line):
            return inside, line
        inside.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
    return inside, ""
