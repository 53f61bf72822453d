"""How a run looks in a terminal: a live picture where there is one, plain lines where there is not.

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
    """Somebody who is told what happens, and shows it."""

    def __call__(self, event: RunEvent, /) -> None: ...

    def aside(self) -> AbstractContextManager[None]:
        """Leave the terminal to somebody else for a while, to ask a question for example."""
        ...


@contextmanager
def open_view(console: "Console | None" = None, *, verbose: bool = False) -> Generator[View]:
    """Show the events of a run until the context is left. What it yields never blocks for long."""
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
    """Make a console that can write any text, whatever the terminal's encoding can hold."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # Where nobody looks at the width, a sentence is a line.
        console.width = _UNBROKEN
    return console
