"""Settings of a chat session, and the callback that asks the user before a tool call."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from assay.contracts.chat import ToolAsk

Approval = Literal["allow", "ask", "deny"]
CellForm = Literal["auto", "calls", "blocks"]
"""`auto`: tool calls if the model makes native calls and does not run on this machine."""
Approve = Callable[[ToolAsk], Awaitable[bool]]
"""Asks the user; False blocks the tool call."""


async def approve_nothing(ask: ToolAsk) -> bool:
    """Reject every tool call, because there is no user to ask."""
    del ask
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """The settings of a chat session."""

    steps: int = 8
    """Cells and tool calls per turn."""
    repairs: int = 3
    """Consecutive failed cells before the model must report the problem."""
    screening: Literal["off", "warn", "block"] = "warn"
    """The action for code that screening flags."""
    cells: CellForm = "auto"
    """How a model runs code: by tool calls, or in fenced blocks of its text."""
    approvals: Mapping[str, Approval] = field(default_factory=dict[str, Approval])
    """By tool; tools that are not listed need approval."""
