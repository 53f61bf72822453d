"""Discovery of tools in YAML files: Assay's, the user's and the project's.

A discovered tool is a `RegisteredTool`: the tool with its origin and its approval.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.contracts.ports import Tool
from assay.settings.sections import Approval
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.tools.yaml_tool import load_tool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTool:
    """A tool that can be offered to a model."""

    tool: Tool
    origin: str
    """`assay`, the path of a file, or `mcp:NAME`."""
    approval: Approval


SHIPPED: Final = Path(__file__).with_name("registry")
PROJECT_FOLDER: Final = Path(".assay") / "tools"
_MOST_FILES: Final = 200

OnNotice = Callable[[str], None]
"""Receives one line about each skipped file."""


def collect(
    user_folder: Path,
    project: Path | None,
    approvals: Mapping[str, Approval],
    on_notice: OnNotice,
) -> tuple[RegisteredTool, ...]:
    """Return the built-in tools and those of all files; skips and reports invalid files.

    The first tool of a name wins: built-in, then shipped, the user's, the project's.
    """
    found = {
        tool.spec.name: RegisteredTool(tool=tool, origin="assay", approval="allow")
        for tool in WORKSPACE_TOOLS
    }
    folders = [(SHIPPED, True), (user_folder, True)]
    folders += [(project / PROJECT_FOLDER, False)] if project is not None else []
    for folder, trusted in folders:
        for path in tool_files(folder):
            try:
                tool = load_tool(path)
            except UsageError as error:
                on_notice(f"left out a tool: {error}")
                continue
            name = tool.spec.name
            if name in found:
                on_notice(f"left out a tool: {path}: {name!r} is there from {found[name].origin}")
                continue
            # Projects often have other authors: their files cannot approve a tool for the user.
            approval = "ask" if tool.approval == "allow" and not trusted else tool.approval
            origin = "assay" if folder == SHIPPED else str(path)
            found[name] = RegisteredTool(tool=tool, origin=origin, approval=approval)
    return with_policy(found.values(), approvals)


def tool_files(folder: Path) -> tuple[Path, ...]:
    """Return the possible tool files of a folder in order; none if there is no folder."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
    except OSError:
        return ()
    return tuple(found[:_MOST_FILES])


def with_policy(
    tools: Iterable[RegisteredTool], approvals: Mapping[str, Approval]
) -> tuple[RegisteredTool, ...]:
    """Return the tools with the policy of the user's own settings."""
    return tuple(
        replace(each, approval=approvals.get(each.tool.spec.name, each.approval)) for each in tools
    )
