"""`assay env`: shows and builds the environment that a project declares."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli.options import FOLDER, JSON_OBJECT, to_json

if TYPE_CHECKING:
    from assay.environment.declared import DeclaredEnvironment

_PROJECT: Final = click.option(
    "--project", type=FOLDER, default=Path(), help="Folder of the project.  [default: here]"
)


@click.group(name="env")
def command() -> None:
    """Show and build the environment that a project declares.

    `assay run` builds it when it is needed. Building it before makes the first run faster.
    """


@command.command(name="show")
@_PROJECT
@JSON_OBJECT
def show(project: Path, *, as_json: bool) -> None:
    """List the packages that the project declares, and the files that declare them."""
    declared = _detect(project)
    if as_json:
        click.echo(to_json(_fields(declared)))
        return
    if declared.empty:
        click.echo("the project declares no packages")
        return
    _print(declared, declared.requirements)


@command.command(name="build")
@_PROJECT
@JSON_OBJECT
def build(project: Path, *, as_json: bool) -> None:
    """Install the packages of the project into a layer, and list them with their hashes."""
    import anyio

    from assay.runs.environment import AUTO, prepare_environment
    from assay.settings.load import load_settings
    from assay.wiring import check_extras

    settings = load_settings(project=project)
    check_extras("an environment", settings, "packages")
    declared = _detect(project)
    tell = partial(click.echo, err=True)
    environment = anyio.run(prepare_environment, settings.sandbox, AUTO, project, tell)
    pins = environment.sandbox.packages
    if as_json:
        click.echo(to_json({**_fields(declared), "pins": list(pins)}))
    elif declared.empty:
        click.echo("the project declares no packages")
    else:
        _print(declared, pins)


@command.command(name="clean")
def clean() -> None:
    """Remove the layers of packages that no sandbox is using, and all downloads."""
    from assay.sandbox.factory import build_package_store
    from assay.settings.load import load_settings
    from assay.text.formatting import count

    removed = build_package_store(load_settings().sandbox).clean()
    click.echo(f"removed {count(len(removed), 'layer')} of packages")


def _detect(project: Path) -> "DeclaredEnvironment":
    from assay.settings.load import load_settings
    from assay.wiring import check_extras

    check_extras("an environment", load_settings(project=project), "packages")
    from assay.environment.detect import detect_environment
    from assay.environment.project_files import ProjectFiles

    return detect_environment(ProjectFiles(project))


def _fields(declared: "DeclaredEnvironment") -> dict[str, Any]:
    return {
        "files": list(declared.files),
        "locked": declared.locked,
        "requirements": list(declared.requirements),
        "constraints": list(declared.constraints),
        "project": declared.project,
    }


def _print(declared: "DeclaredEnvironment", packages: tuple[str, ...]) -> None:
    from assay.cli.render.text import one_line

    if project := declared.project:
        folders = ", ".join(folder or "." for folder in project.folders)
        click.echo(f"project   {one_line(f'{project.name} {project.version}')}, from {folders}")
    click.echo(f"files     {one_line(', '.join(declared.files))}")
    for text in packages:
        pin, *hashes = text.split(" --hash=")
        more = f" and {len(hashes) - 1} more" if len(hashes) > 1 else ""
        digest = f"  {hashes[0]}{more}" if hashes else ""
        click.echo(f"  {one_line(pin)}{one_line(digest) and f'  {one_line(digest)}'}")
