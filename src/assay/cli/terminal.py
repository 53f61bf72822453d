"""Questions before something is removed, progress of downloads, and clean interruption."""

import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from assay.models.open import OpenOptions


Value = TypeVar("Value")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


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
def open_bar(*columns: "ProgressColumn", silent: bool = False) -> Generator["Progress"]:
    """Show a bar on stderr if that is a terminal; its console prints lines above it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True, quiet=silent, highlight=False)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield bar


@contextmanager
def open_progress(*, silent: bool = False) -> Generator["OpenOptions"]:
    """Print notices as lines on stderr, and progress as a bar if that is a terminal."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from assay.models.open import OpenOptions

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with open_bar(*columns, silent=silent) as bar:
        task = bar.add_task("", total=None, visible=False)

        def tell(sentence: str) -> None:
            bar.console.print(sentence, markup=False, soft_wrap=True)

        def progress(done_bytes: int, total_bytes: int, what: str) -> None:
            bar.update(
                task, completed=done_bytes, total=total_bytes, description=what, visible=True
            )

        yield OpenOptions(on_notice=tell, on_progress=progress)


async def run_until_interrupted(work: Callable[[], Coroutine[Any, Any, Value]]) -> Value | None:
    """Run the work to completion; on SIGINT or SIGTERM cancel it cleanly and return None.

    An error of the work is raised without the exception groups around it.
    """
    import anyio

    value: Value | None = None
    failures: list[Exception] = []

    async def carry_out() -> None:
        nonlocal value
        try:
            value = await work()
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failures.append(_innermost(error))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(carry_out)
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            async for _ in signals:
                tasks.cancel_scope.cancel()
                break
    if failures:
        raise failures[0]
    return value


@contextmanager
def interruptible() -> Generator[None]:
    """Make SIGINT and SIGTERM raise `KeyboardInterrupt` in code that blocks the event loop.

    During a question, the signal would otherwise take effect only after the answer.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _innermost(error: Exception) -> Exception:
    """Return the first error without the groups around it."""
    if isinstance(error, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", error).exceptions  # `isinstance` hides the type.
        return _innermost(inner[0])
    return error
