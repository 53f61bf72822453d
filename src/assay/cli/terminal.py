"""Questions before something is removed, and the progress of downloads."""

import sys
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from assay.models.open import OpenOptions


YES = click.option("--yes", is_flag=True, help="Do not ask; required without a terminal.")


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees, or has agreed with `--yes`.

    Raises:
        UsageError: If there is no terminal to ask at.
        click.Abort: If the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this removes data permanently, and without a terminal Assay cannot ask",
            hint="add --yes",
        )
    click.confirm(question, abort=True, err=True)


def check_ids(ids: Iterable[str], known: Collection[str]) -> None:
    """Check that everything to remove exists.

    Raises:
        UsageError: If something does not.
    """
    for each in ids:
        if each not in known:
            raise UsageError(
                f"nothing of the name {each!r} was left behind",
                hint="`assay sandbox list` shows what was",
            )


@contextmanager
def open_progress(*, silent: bool = False) -> Generator["OpenOptions"]:
    """Print notices as lines on stderr, and progress as a bar if that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from assay.models.open import OpenOptions

    console = Console(stderr=True, quiet=silent, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, visible=False)

        def tell(sentence: str) -> None:
            bar.console.print(sentence, markup=False, soft_wrap=True)

        def progress(done_bytes: int, total_bytes: int, what: str) -> None:
            bar.update(
                task, completed=done_bytes, total=total_bytes, description=what, visible=True
            )

        yield OpenOptions(on_notice=tell, on_progress=progress)
