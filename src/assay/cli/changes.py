"""`assay diff`, `assay apply` and `assay undo`: the changes of a run after its end."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from assay.cli.options import JSON_OBJECT, YES, to_json
from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from assay.runs.delivery import Delivery
    from assay.text.patches import FilePatch

_LETTERS: Final = {"added": "A", "modified": "M", "deleted": "D"}
_BAR: Final = 40
_RUN: Final = click.argument("name", metavar="[RUN]", default="")


@click.command(name="diff")
@_RUN
@click.option("--stat", is_flag=True, help="Print the number of changed lines per file instead.")
@JSON_OBJECT
def diff(name: str, *, stat: bool, as_json: bool) -> None:
    """Print the changes of RUN, or of the newest run, as a patch for `git apply`.

    The patch leads from the files before the run to its accepted files, or to its best files so
    far. RUN may be the beginning of a run's name.

    Example: assay diff brisk-otter | git apply
    """
    from assay.runs.stored_result import stored_result
    from assay.settings.load import load_settings
    from assay.storage.run_store import RunStore
    from assay.text.patches import file_patches

    run = RunStore(load_settings().state_dir).open(name)
    result = stored_result(run)
    patches = tuple(file_patches(*result.trees(run.id)))
    if as_json:
        fields = {
            "run": run.id,
            "accepted": result.accepted,
            "changes": [_fields(one) for one in patches],
            "diff": b"".join(one.content for one in patches).decode("utf-8", "surrogateescape"),
        }
        click.echo(to_json(fields))
        return
    if not result.accepted:
        click.echo(f"note: the result of the run {run.id!r} was not accepted", err=True)
    if stat:
        for line in _statistics(patches):
            click.echo(line)
    else:
        _print_patch(b"".join(one.content for one in patches))


def _fields(patch: "FilePatch") -> dict[str, object]:
    return {
        "path": str(patch.change.path),
        "kind": patch.change.kind,
        "added": patch.added,
        "deleted": patch.deleted,
        "binary": patch.binary,
    }


def _statistics(patches: "Sequence[FilePatch]") -> list[str]:
    """Return one line per file, and their sum, as `git diff --stat` does."""
    from assay.text.diffs import quoted_name

    names = [quoted_name(one.change.path) for one in patches]
    width = max((len(name) for name in names), default=0)
    most = max((one.added + one.deleted for one in patches), default=0)
    scale = min(1.0, _BAR / most) if most else 1.0
    lines: list[str] = []
    for name, one in zip(names, patches, strict=True):
        count = "binary" if one.binary else str(one.added + one.deleted)
        bar = "+" * round(one.added * scale) + "-" * round(one.deleted * scale)
        lines.append(f" {name:<{width}} | {count:>6} {bar}".rstrip())
    added, deleted = (sum(getattr(one, kind) for one in patches) for kind in ("added", "deleted"))
    files = "1 file" if len(patches) == 1 else f"{len(patches)} files"
    return [*lines, f" {files} changed, {added} added (+), {deleted} deleted (-)"]


def _print_patch(patch: bytes) -> None:
    if not sys.stdout.isatty():
        click.echo(patch, nl=False)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    from assay.cli.render.highlighting import THEME
    from assay.cli.render.text import visible

    text = visible(patch.decode("utf-8", "backslashreplace")).rstrip("\n")
    console = Console(highlight=False)
    if text and not console.no_color:
        console.print(Syntax(text, "diff", theme=THEME, background_color="default"))
    elif text:
        click.echo(text)


@click.command(name="apply")
@_RUN
@YES
@JSON_OBJECT
def apply(name: str, *, yes: bool, as_json: bool) -> None:
    """Write the accepted files of RUN, or of the newest run, into its folder.

    Nothing is written if a file that the run changed differs from the one that the run read. A
    result that was not accepted is never written.

    Example: assay apply brisk-otter
    """
    import anyio

    from assay.runs.delivery import apply_run
    from assay.settings.load import load_settings

    def ask(folder: str) -> None:
        _confirm(f"Write the accepted files into {folder}?", yes=yes)

    delivery = anyio.run(apply_run, name, load_settings(), ask)
    _report(delivery, "written", as_json=as_json)


@click.command(name="undo")
@_RUN
@YES
@JSON_OBJECT
def undo(name: str, *, yes: bool, as_json: bool) -> None:
    """Take back what RUN, or the newest run, wrote into its folder.

    Nothing is taken back if a file was changed after the run.

    Example: assay undo brisk-otter
    """
    import anyio

    from assay.runs.delivery import undo_run
    from assay.settings.load import load_settings

    def ask(folder: str) -> None:
        _confirm(f"Take back what the run wrote into {folder}?", yes=yes)

    delivery = anyio.run(undo_run, name, load_settings(), ask)
    _report(delivery, "taken back", as_json=as_json)


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "nothing was written: without a terminal, Assay cannot ask", hint="add --yes"
        )
    click.confirm(question, abort=True, default=True, err=True)


def _report(delivery: "Delivery", done: str, *, as_json: bool) -> None:
    from assay.text.diffs import quoted_name

    if as_json:
        changes = [{"path": str(one.path), "kind": one.kind} for one in delivery.changes]
        fields = {"run": delivery.run, "folder": str(delivery.folder), "changes": changes}
        click.echo(to_json(fields))
        return
    count = len(delivery.changes)
    files = "1 file" if count == 1 else f"{count} files"
    click.echo(f"{files} {done} in {str(delivery.folder)!r}:")
    for change in delivery.changes:
        click.echo(f"  {_LETTERS[change.kind]} {quoted_name(change.path)}")
