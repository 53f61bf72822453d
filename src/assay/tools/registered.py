"""A tool with its origin and its approval."""

from dataclasses import dataclass

from assay.contracts.ports import Tool
from assay.settings.sections import Approval


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTool:
    """A tool that can be offered to a model."""

    tool: Tool
    origin: str
    """`assay`, the path of a file, or `mcp:NAME`."""
    approval: Approval
