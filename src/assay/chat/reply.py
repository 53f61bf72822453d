"""What a reply amounts to: cells to run, and something to say. Pure."""

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
    """Code to be run."""

    before: str
    """What was said since the block before it."""
    code: str

    @property
    def as_written(self) -> str:
        before = f"{self.before}\n\n" if self.before else ""
        return f"{before}{_FENCE}python\n{self.code}\n{_FENCE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One reply, its parts told apart."""

    text: str
    """All of it."""
    blocks: tuple[Block, ...] = ()
    after: str = ""
    """What comes after the last block; all of the text where there is none."""

    @property
    def prose(self) -> str:
        """Return what is said in words, and code that is only shown."""
        parts = (*(block.before for block in self.blocks), self.after)
        return "\n\n".join(part for part in parts if part)

    @property
    def as_written(self) -> str:
        """Return what the model should remember to have said.

        What it writes after its last block is made up: it has not seen what came out.
        """
        if not self.blocks:
            return self.text
        return "\n\n".join(block.as_written for block in self.blocks)


def say_only(text: str) -> Said:
    """Read a reply in which no code is to be run."""
    return Said(text=text.strip(), after=text.strip())


def read_reply(text: str) -> Said:
    """Tell the blocks of Python from what was said around them."""
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
    """Return the lines of a block and the line that ends it; empty if it is cut off."""
    inside: list[str] = []
    closes = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*")
    for line in lines:
        if closes.fullmatch(line):
            return inside, line
        inside.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
    return inside, ""
