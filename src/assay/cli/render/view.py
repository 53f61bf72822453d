"""The view of a run: a live picture on a terminal, plain lines elsewhere, or JSON.

Views write to stderr, so that stdout holds nothing but the result. JSON is the object that `--json`
prints and the lines that `--events` writes.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from io import TextIOWrapper
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

from assay.cli.render.text import count, event_line, plain, shortened, visible
from assay.contracts.events import (
    BudgetUsed,
    ChecksWritten,
    Executed,
    FilesChanged,
    ModelReplied,
    OutputDelta,
    Planned,
    RunEvent,
    Screened,
    TextDelta,
    ToolAnswered,
)
from assay.contracts.goal import RunResult
from assay.contracts.verdict import TestMatrix

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


_DETAIL_LINES: Final = 60
_WIDEST: Final = 500


class PlainView:
    """A view with one line per notable event; `verbose` adds output of models and programs."""

    def __init__(self, file: IO[str], *, verbose: bool = False) -> None:
        self._file = file
        self._verbose = verbose
        self._heard = True

    def __call__(self, event: RunEvent) -> None:
        if not self._verbose and not _is_notable(event):
            return
        lines = [event_line(event)]
        if self._verbose:
            lines += [f"    {line}" for line in details(event)]
        self._write("".join(f"{line}\n" for line in lines if line))

    @contextmanager
    def aside(self) -> Generator[None]:
        """Do nothing: lines need no room on the screen."""
        yield

    def _write(self, text: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        try:
            if self._heard and text:
                self._file.write(text.encode(encoding, "backslashreplace").decode(encoding))
                self._file.flush()
        except OSError:
            # The reader of the output has closed it. The run continues.
            self._heard = False


def _is_notable(event: RunEvent) -> bool:
    if isinstance(event, Screened):
        return bool(event.findings)
    return not isinstance(event, TextDelta | OutputDelta | ModelReplied | ToolAnswered | BudgetUsed)


def details(event: RunEvent) -> list[str]:
    """Return what stands behind a line: steps, texts, answers, changes, output of what failed."""
    match event:
        case Planned():
            return _some(f"{number}. {step}" for number, step in enumerate(event.steps, start=1))
        case ModelReplied() | ChecksWritten():
            return _some([event.text])
        case ToolAnswered():
            return _some([event.answer])
        case FilesChanged():
            # A diff hides nothing, not even an escape sequence.
            return _some([visible(event.diff)])
        case Executed():
            return _some(report.output for report in event.reports if not report.passed)
        case _:
            return []


def _some(texts: Iterable[str]) -> list[str]:
    lines = [line for text in texts for line in plain(text.rstrip()).split("\n")]
    shown = [shortened(line, _WIDEST) for line in lines[:_DETAIL_LINES]]
    left = len(lines) - len(shown)
    return [*shown, f"({count(left, 'line')} more)"] if left else shown if any(shown) else []


def json_outcome(outcome: RunResult) -> dict[str, Any]:
    """Return what `assay run --json` prints."""
    usage = outcome.usage
    return {
        "run": outcome.run,
        "outcome": outcome.status.value,
        "accepted": outcome.accepted,
        "grade": outcome.grade.value if outcome.grade else None,
        "reason": _text(outcome.reason),
        "attempts": outcome.attempts,
        "test_matrix": {
            "attempts": [row.attempt for row in outcome.test_matrix.rows],
            "tests": matrix_fields(outcome.test_matrix),
        },
        "findings": [_plain(finding) for finding in outcome.findings],
        "changes": [_plain(change) for change in outcome.changes],
        "withheld": [_plain(one) for one in outcome.withheld],
        "cost": {
            "usd": usage.cost_usd,
            "input_tokens": usage.input_tokens,
            "cached_input_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "saved_usd": usage.saved_usd,
            "calls": usage.calls,
        },
        "wall_s": round(outcome.wall_s, 3),
        "certificate": outcome.certificate or None,
        "commit": outcome.commit or None,
        "tree": outcome.tree,
    }


def matrix_fields(test_matrix: TestMatrix) -> dict[str, list[str | None]]:
    """Return, per test id, its result in each attempt; null where it was not reported."""
    return {
        _text(test): [
            status.value if (status := row.statuses.get(test)) else None for row in test_matrix.rows
        ]
        for test in test_matrix.tests
    }


def json_event(event: RunEvent) -> dict[str, Any]:
    """Return an event as in a line of `--events`: its kind, then its fields."""
    told = _plain(event)
    return {"kind": told.pop("kind"), **told}


def _plain(value: object) -> Any:
    """Return a value of the contracts as JSON."""
    if isinstance(value, str | PurePath):
        return _text(str(value))
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return {_text(str(key)): _plain(item) for key, item in pairs.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[object, ...]", value)]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _text(text: str) -> str:
    # Bytes that are not UTF-8 come as lone surrogates, which other JSON readers refuse.
    return text.encode("utf-8", "replace").decode()
