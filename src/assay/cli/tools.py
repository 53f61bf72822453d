"""`assay tools`: lists the tools of models, and checks tool files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.options import FOLDER, JSON_ARRAY, JSON_OBJECT, to_json
from assay.contracts.errors import ExitCode, UsageError

if TYPE_CHECKING:
    pass


@click.group(name="tools")
def command() -> None:
    """List the tools that models may use, and check your own.

    Tools are built in, declared in files (with Assay, in the folder `tools` beside the settings
    file, in `.assay/tools` of a project), or those of MCP servers named in the settings.
    """


@command.command(name="list")
@click.option("--project", type=FOLDER, default=Path())
@click.option("--no-mcp", "without_servers", is_flag=True, help="Do not start or ask MCP servers.")
@JSON_ARRAY
def list_(project: Path, *, without_servers: bool, as_json: bool) -> None:
    """List every tool, its origin, and whether models may use it without asking."""
    import anyio

    found: list[dict[str, Any]] = anyio.run(_list, project, without_servers)
    if as_json:
        click.echo(to_json(found))
    else:
        _print(found)


async def _list(project: Path, without_servers: bool) -> list[dict[str, Any]]:  # noqa: FBT001 - by position
    from assay.settings.load import load_settings
    from assay.wiring import open_tools

    settings = load_settings()
    if without_servers:
        tools = settings.tools.model_copy(update={"mcp": {}})
        settings = settings.model_copy(update={"tools": tools})

    def notice(text: str) -> None:
        click.echo(f"note: {text}", err=True)

    async with open_tools(settings, project=project, on_notice=notice) as found:
        return [
            {
                "name": each.tool.spec.name,
                "approval": each.approval,
                "origin": each.origin,
                "description": each.tool.spec.description,
                "parameters": each.tool.spec.parameters,
            }
            for each in found
        ]


def _print(found: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from assay.cli.render.text import one_line
    from assay.cli.render.view import open_console

    colours = {"allow": "green", "ask": "yellow", "deny": "red"}
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(title, "bold") for title in ("tool", "approval", "from", "what it does")))
    for each in found:
        table.add_row(
            Text(each["name"], no_wrap=True),
            Text(each["approval"], colours[each["approval"]]),
            Text(one_line(each["origin"]), "dim", overflow="fold"),
            Text(one_line(each["description"]), no_wrap=True, overflow="ellipsis"),
        )
    open_console().print(table)


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@JSON_OBJECT
def check(files: tuple[Path, ...], *, as_json: bool) -> int:
    """Check tool FILES, or all that Assay would load here. Nothing is run."""
    from assay.settings.load import load_settings
    from assay.tools.discover import PROJECT_FOLDER, SHIPPED, tool_files
    from assay.tools.yaml_tool import load_tool

    folders = (SHIPPED, load_settings().config_dir / "tools", PROJECT_FOLDER)
    paths = files or tuple(path for folder in folders for path in tool_files(folder))
    good: list[str] = []
    faults: list[str] = []
    for path in paths:
        try:
            good.append(load_tool(path).spec.name)
        except UsageError as error:
            faults.append(str(error))
    if as_json:
        click.echo(to_json({"tools": good, "faults": faults}))
    else:
        for fault in faults:
            click.echo(f"{click.style('invalid', fg='red')}  {fault}")
        click.echo(f"{len(good)} of {len(paths)} files are valid")
    return ExitCode.USAGE if faults else ExitCode.ACCEPTED
