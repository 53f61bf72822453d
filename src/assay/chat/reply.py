"""How a model requests cells: by tool calls, or in fenced blocks of its text. Pure.

Parses a reply into cells and text, and adds hints for missing modules.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from assay.contracts.chat import READY_NAMES
from assay.contracts.execution import CellResult
from assay.contracts.messages import ModelInfo, ToolCall, ToolSpec
from assay.contracts.ports import Screen

CellForm = Literal["auto", "calls", "blocks"]
"""`auto`: tool calls if the model makes native calls and does not run on this machine."""

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
class ChatReply:
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


def read_reply(text: str) -> ChatReply:
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
    return ChatReply(text=text.strip(), blocks=tuple(blocks), after="\n".join(words).strip())


def _inside(lines: Iterator[str], fence: str, indent: int) -> tuple[list[str], str]:
    """Return the lines of a block and its closing line, which is empty if the block is cut off."""
    inside: list[str] = []
    closes = re.compile(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*")
    for line in lines:
        if closes.fullmatch(line):
            return inside, line
        inside.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
    return inside, ""


CELL_TOOL: Final = ToolSpec(
    name="run_cell",
    description="Run Python code as the next cell of the notebook, and return what it printed, "
    "the value of its last expression, its figures and the files it wrote.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code of one cell."}},
        "required": ["code"],
        "additionalProperties": False,
    },
)
NO_CODE: Final = "`run_cell` needs an object with the text `code`."
NOT_RUN: Final = "It was not run, because an earlier cell of the same reply failed."
_MISSING: Final = re.compile(
    r"No module named '(?P<module>\w+)|Missing optional dependency '(?P<optional>[\w-]+)'"
)


def screened(screen: Screen, code: str) -> str:
    """Screen a cell, with a first line that imports the names that cells find preloaded.

    Returns the findings, one per line.
    """
    ahead = "; ".join(f"import {module} as {name}" for name, module in READY_NAMES)
    text = f"{ahead}\n{code}"
    found = screen(PurePosixPath("cell.py"), text.encode("utf-8", "replace"))
    return "\n".join(f"- line {one.line - 1}: {one.explanation}" for one in found if one.line > 1)


def takes_calls(info: ModelInfo, form: CellForm) -> bool:
    """Whether the model runs cells by tool calls; otherwise it writes them into its text."""
    if form != "auto":
        return form == "calls"
    return info.tool_calls and not info.small and not info.cells_in_text


def code_of(call: ToolCall) -> str:
    """Return the code of a call; empty if it has none."""
    arguments: Mapping[str, Any] = call.arguments or {}
    code = arguments.get("code")
    return code.strip("\n") if isinstance(code, str) and code.strip() else ""


def import_hint(result: CellResult) -> str:
    """Return how to install the package that a cell failed to import; empty if none is missing."""
    if result.error is None or result.error.name not in {"ImportError", "ModuleNotFoundError"}:
        return ""
    found = _MISSING.search(result.error.message)
    if found is None:
        return ""
    name = found["module"] or found["optional"]
    return (
        f"hint: `{name}` is not installed, and a cell cannot install it. The person can: "
        f"`/package {name}` in the chat, or `assay chat --package {name}`. "
        "(A package may have another name than its module.)"
    )
