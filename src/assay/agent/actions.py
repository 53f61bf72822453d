"""The actions that a reply can request, as tool calls or as text."""

from dataclasses import dataclass

from assay.agent.edits.apply import Edit
from assay.contracts.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Finish:
    """The model says that it is finished; the independent check decides."""


Action = Edit | ToolCall | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """The actions that a reply requests."""

    asks: tuple[Action, ...] = ()
    """In the order of the reply."""
    problems: tuple[str, ...] = ()
    """Parse errors, as text for the model."""
    prose: str = ""
    """The text of the reply outside of the actions."""
    call_ids: tuple[str, ...] = ()
    """For native calls: the call ID of each entry of `asks`, by position. Empty for text."""
    problem_ids: tuple[str, ...] = ()
    """For native calls: the call ID of each entry of `problems`, by position. Empty for text."""
