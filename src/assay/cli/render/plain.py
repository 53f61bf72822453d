"""A run as plain lines, for logs and pipes: each is written once and flushed."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import IO, Final, assert_never

from assay.cli.render.event_text import count, event_line
from assay.cli.render.text import plain, shortened, visible
from assay.contracts.events import (
    AttemptStarted,
    BudgetUsed,
    ChecksWritten,
    Executed,
    FilesChanged,
    ModelReplied,
    OutputDelta,
    Planned,
    Reflected,
    RolledBack,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    Screened,
    TextDelta,
    ToolAnswered,
    Verified,
)

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
            # Whoever was listening has left. That is no reason to end the run.
            self._heard = False


def _is_notable(event: RunEvent) -> bool:
    match event:
        case TextDelta() | OutputDelta() | ModelReplied() | ToolAnswered() | BudgetUsed():
            return False
        case Screened(findings=findings):
            return bool(findings)
        case (
            RunStarted()
            | RunResumed()
            | Planned()
            | ChecksWritten()
            | AttemptStarted()
            | FilesChanged()
            | Executed()
            | Verified()
            | RolledBack()
            | Reflected()
            | RunEnded()
        ):
            return True
        case _:
            assert_never(event)


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
