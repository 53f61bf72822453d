"""The progress of downloads: notices as lines, progress as a bar."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.models.open import OpenOptions


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
