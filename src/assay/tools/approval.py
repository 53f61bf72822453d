"""Tools with where they come from, and whether they may be used or a person is asked first."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.contracts.conversation import ToolSpec
from assay.contracts.errors import ToolError
from assay.contracts.ports import OnOutput, Sandbox, Tool, ignore_output
from assay.service_settings import Approval

Ask = Callable[[ToolSpec, Mapping[str, Any]], Awaitable[bool]]
"""Asks a person whether a tool may be called with these arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTool:
    """A tool that can be offered to a model."""

    tool: Tool
    origin: str
    """`assay`, the path of a file, or `mcp:NAME`."""
    approval: Approval


def usable(tools: Iterable[RegisteredTool], ask: Ask) -> tuple[Tool, ...]:
    """Return the tools that may be used; those that need it ask before each call."""
    return tuple(
        each.tool if each.approval == "allow" else _Asking(each.tool, ask)
        for each in tools
        if each.approval != "deny"
    )


@dataclass(frozen=True, slots=True)
class _Asking:
    """A tool that a person has to agree to, each time."""

    tool: Tool
    ask: Ask

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        if not await self.ask(self.spec, arguments):
            raise ToolError(f"the person does not want {self.spec.name} to be used for this")
        return await self.tool.call(arguments, sandbox, on_output=on_output)
