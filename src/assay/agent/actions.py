"""The things a reply can ask for, however it asks."""

from dataclasses import dataclass

from assay.agent.edits.apply import Edit
from assay.contracts.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Finish:
    """The model says that it is finished. Nobody believes it: the controller verifies."""


Action = Edit | ToolCall | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """What a reply asks for."""

    asks: tuple[Action, ...] = ()
    """In the order in which they were written."""
    problems: tuple[str, ...] = ()
    """What could not be understood, in words for the model."""
    prose: str = ""
    """What the model said besides."""
    call_ids: tuple[str, ...] = ()
    """Of native calls: the call behind each of `asks`, at the same place. Empty for text."""
    problem_ids: tuple[str, ...] = ()
    """Of native calls: the call behind each of `problems`, at the same place. Empty for text."""
