"""`assay map`: draws the parts of the package and the agent's graph."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from assay.contracts.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.cli.diagram.picture import Picture

What = Literal["parts", "agent", "all"]
Format = Literal["text", "mermaid", "svg"]

_BY_ENDING: Final[dict[str, Format]] = {
    ".svg": "svg",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".txt": "text",
}
_WIDEST: Final = 160


@click.command(name="map")
@click.option(
    "--what",
    type=click.Choice(["parts", "agent", "all"]),
    default="all",
    show_default=True,
    help="The package's parts, the agent's steps, or both.",
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["text", "mermaid", "svg"]),
    help="Output format.  [default: by the suffix of --out, else text]",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def command(what: What, wanted: Format | None, out: Path | None) -> int:
    """Draw the parts of the package, the backends, models and servers, and the agent's graph.

    Parts and arrows come from the imports of the installed package, steps from the compiled
    graph.
    """
    chosen = wanted or (_BY_ENDING.get(out.suffix.lower(), "text") if out else "text")
    drawn = _drawn(_pictures(what), chosen, to_file=out is not None)
    if out is None:
        click.echo(drawn, nl=False)
        return ExitCode.ACCEPTED
    try:
        out.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(out)!r} cannot be written: {error.strerror}") from error
    click.echo(f"written to {out}")
    return ExitCode.ACCEPTED


def _pictures(what: What) -> list["Picture"]:
    import anyio

    from assay.cli.diagram.system import picture_of_agent, picture_of_parts
    from assay.models.resolve import list_available
    from assay.settings.load import load_settings

    pictures: list[Picture] = []
    if what != "agent":
        settings = load_settings()
        pictures.append(picture_of_parts(settings, anyio.run(list_available, settings.models)))
    if what != "parts":
        pictures.append(picture_of_agent())
    return pictures


def _drawn(pictures: list["Picture"], wanted: Format, *, to_file: bool) -> str:
    from assay.cli.diagram.mermaid import to_mermaid
    from assay.cli.diagram.svg import to_svg
    from assay.cli.diagram.text import to_text

    match wanted:
        case "text":
            columns = 100 if to_file else shutil.get_terminal_size((100, 24)).columns
            return to_text(pictures, width=min(columns, _WIDEST))
        case "mermaid":
            return to_mermaid(pictures)
        case "svg":
            return to_svg(pictures)
