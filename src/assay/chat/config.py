"""How a conversation is led, and who is asked before a tool is used."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from assay.contracts.chat import ToolAsk

Approval = Literal["allow", "ask", "deny"]
CellForm = Literal["auto", "calls", "blocks"]
"""`auto`: by calls where the model makes native ones and is not small."""
Approve = Callable[[ToolAsk], Awaitable[bool]]
"""Asks a person; False keeps the tool from being used."""


async def approve_nothing(ask: ToolAsk) -> bool:
    """Be the person who is not there."""
    del ask
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How a conversation is led."""

    steps: int = 8
    """Cells and tools per turn."""
    repairs: int = 3
    """Cells that fail one after the other before the model has to say what is wrong."""
    policy: Literal["off", "warn", "block"] = "warn"
    """What is done about code that the screen has something against."""
    cells: CellForm = "auto"
    """How a model runs code: by calls of a tool, or in fenced blocks of its text."""
    approvals: Mapping[str, Approval] = field(default_factory=dict[str, Approval])
    """By tool; a tool that is not named is asked for."""
