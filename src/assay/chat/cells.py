"""How a model requests cells, and the hint for missing modules. Pure."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

from assay.chat.config import CellForm
from assay.contracts.chat import READY_NAMES
from assay.contracts.events import ScreenFinding
from assay.contracts.interpreter import CellResult
from assay.contracts.messages import ModelFacts, ToolCall, ToolSpec
from assay.contracts.ports import Screen

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


def screened(screen: Screen, code: str) -> tuple[ScreenFinding, ...]:
    """Screen a cell, with a first line that imports the names that cells find preloaded."""
    ahead = "; ".join(f"import {module} as {name}" for name, module in READY_NAMES)
    text = f"{ahead}\n{code}"
    found = screen(PurePosixPath("cell.py"), text.encode("utf-8", "replace"))
    return tuple(replace(one, line=one.line - 1) for one in found if one.line > 1)


def takes_calls(facts: ModelFacts, form: CellForm) -> bool:
    """Whether the model runs cells by tool calls; otherwise it writes them into its text."""
    if form != "auto":
        return form == "calls"
    return facts.tool_calls and not facts.local and not facts.cells_in_text


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
