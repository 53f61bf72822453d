"""What a stateful interpreter is told cell by cell, and what comes back of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from assay.contracts.execution import ExecutionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RichOutput:
    """One thing a cell shows besides text on its streams, in every form it was given in."""

    kind: Literal["value", "display"]
    """The value of the last expression, or something shown on the way: a figure, `display(…)`."""
    forms: Mapping[str, bytes]
    """By media type: `text/plain` is always there for a value, `text/html` for tables,
    `image/png` for figures, `application/json`. Untrusted, whatever the type says."""
    dropped: tuple[str, ...] = ()
    """Media types that were left out because they were too large."""

    @property
    def text(self) -> str:
        return self.forms.get("text/plain", b"").decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellError:
    """The exception that ended a cell, as its author needs to see it."""

    name: str
    message: str
    traceback: tuple[str, ...]
    """Lines, with the frames of the cells alone and the source of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """How one cell went."""

    number: int
    """Counts the cells of the session, from 1."""
    execution: ExecutionResult
    """Streams, reason and measures of this cell alone; `exit_code` is 1 after an exception."""
    outputs: tuple[RichOutput, ...]
    error: CellError | None
    state: Literal["kept", "rolled_back"]
    """`kept`: later cells see what this one did, also when it raised. `rolled_back`: it was ended
    from outside or crashed, and variables are as they were before it. Files are not undone."""

    @property
    def succeeded(self) -> bool:
        return self.error is None and self.execution.succeeded
