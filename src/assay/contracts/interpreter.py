"""Results of cells that a stateful interpreter runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from assay.contracts.execution import ExecutionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RichOutput:
    """One rich output of a cell, in every media type that it was given in."""

    kind: Literal["value", "display"]
    """The value of the last expression, or output of `display(…)` and figures during the cell."""
    forms: Mapping[str, bytes]
    """By media type: a value always has `text/plain`, tables have `text/html`, figures `image/png`;
    also `application/json`. Untrusted, also if the type looks safe."""
    dropped: tuple[str, ...] = ()
    """Media types that were omitted because they were too large."""

    @property
    def text(self) -> str:
        return self.forms.get("text/plain", b"").decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellError:
    """The exception that ended a cell, for the author of the cell."""

    name: str
    message: str
    traceback: tuple[str, ...]
    """Lines of the traceback: only the frames of cells, with the source of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The result of one cell."""

    number: int
    """Number of the cell in the session, from 1."""
    execution: ExecutionResult
    """Streams, reason and measurements of this cell alone; `exit_code` is 1 after an exception."""
    outputs: tuple[RichOutput, ...]
    error: CellError | None
    state: Literal["kept", "rolled_back"]
    """`kept`: later cells see this cell's effects, also if it raised. `rolled_back`: it was killed
    or crashed, and variables have the values from before it. Files are not restored."""

    @property
    def succeeded(self) -> bool:
        return self.error is None and self.execution.succeeded
