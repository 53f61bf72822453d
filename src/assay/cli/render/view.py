"""The view of a run: a live picture on a terminal, plain lines elsewhere.

Both are written to stderr, so that stdout holds nothing but the result.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, Protocol

from assay.contracts.events import RunEvent

if TYPE_CHECKING:
    from rich.console import Console

_UNBROKEN: Final = 2000
Watch = Callable[[RunEvent], None]


class View(Protocol):
    """A display of the events of a run."""

    def __call__(self, event: RunEvent, /) -> None: ...

    def aside(self) -> AbstractContextManager[None]:
        """Leave the terminal free temporarily, for example for a question."""
        ...


@contextmanager
def open_view(console: "Console | None" = None, *, verbose: bool = False) -> Generator[View]:
    """Show the events of a run until the context exits. The view never blocks for long."""
    from assay.cli.render.plain import PlainView

    if console is None:
        console = open_console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainView(console.file, verbose=verbose)
        return
    from assay.cli.render.live import open_live_view

    with open_live_view(console, verbose=verbose) as view:
        yield view


def open_console(*, stderr: bool = False) -> "Console":
    """Return a console that can write any text in any terminal encoding."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # Without a terminal, each sentence is one line.
        console.width = _UNBROKEN
    return console
