"""Tools of a run: built-in ones, and approved ones of users, projects and MCP servers."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from assay.contracts.errors import MissingExtraError
from assay.contracts.messages import ModelInfo
from assay.contracts.ports import Tool
from assay.settings.load import Settings
from assay.tools.discover import PROJECT_FOLDER, tool_files
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.wiring import open_tools


@asynccontextmanager
async def open_run_tools(
    settings: Settings,
    info: ModelInfo,
    project: Path | None,
    on_notice: Callable[[str], None],
) -> AsyncGenerator[tuple[Tool, ...]]:
    """Open the tools that a run offers to its model.

    A run cannot ask the user, so tools marked `ask` are left out, with a line to `on_notice`.
    Models without native tool calls get the built-in tools only.
    """
    folders = [settings.config_dir / "tools", *([project / PROJECT_FOLDER] if project else [])]
    added = bool(settings.tools.mcp) or any(tool_files(folder) for folder in folders)
    if not added or not info.tool_calls:
        yield WORKSPACE_TOOLS
        return
    async with AsyncExitStack() as stack:
        try:
            found = await stack.enter_async_context(
                open_tools(settings, project=project, on_notice=on_notice)
            )
        except MissingExtraError as error:
            on_notice(f"left out all tool files and MCP servers: {error}")
            found = ()
        # The tools that Assay ships do what a program in the sandbox can do, too.
        own = [each for each in found if each.origin != "assay"]
        unasked = [each.tool.spec.name for each in own if each.approval == "ask"]
        if unasked:
            on_notice(
                f"left out {', '.join(unasked)}: a run cannot ask for approval; "
                "tools.approval allows a tool by its name"
            )
        allowed = (each.tool for each in own if each.approval == "allow")
        yield (*WORKSPACE_TOOLS, *allowed)
