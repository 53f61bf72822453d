"""The state of a chat session, computed from its events. Pure."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from assay.contracts.chat import (
    CellEnded,
    CellOutputDelta,
    CellStarted,
    ChatEvent,
    FileLoaded,
    ModelChosen,
    PackagesAdded,
    ToolUsed,
    TurnEnded,
    TurnError,
    TurnStarted,
    TurnStatus,
    TurnUndone,
)
from assay.contracts.messages import Usage

Step = CellEnded | ToolUsed
CUT_OFF: Final = "The cell was cut off."


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One user message, and everything that followed until the model's answer."""

    number: int
    message: str
    steps: tuple[Step, ...] = ()
    thoughts: tuple[str, ...] = ()
    """Text before each cell that ran, in order."""
    remarks: tuple[str, ...] = ()
    """Text after each cell, in the same reply."""
    status: TurnStatus | None = None
    """None if the turn was cut off."""
    answer: str = ""
    error: TurnError | None = None
    """Reason of the failure, if the turn failed."""

    @property
    def cells(self) -> tuple[CellEnded, ...]:
        return tuple(step for step in self.steps if isinstance(step, CellEnded))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All valid turns, the loaded files, and the usage."""

    turns: tuple[Turn, ...] = ()
    files: tuple[FileLoaded, ...] = ()
    """The latest event of each path."""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    begun: int = 0
    """Number of turns that started, including undone ones."""
    packages: tuple[str, ...] = ()
    """Packages that cells can import in addition to the installed ones."""
    running: CellStarted | None = None
    """The cell that has started and not ended."""
    printed: str = ""
    """The stored part of its output."""

    @property
    def kept_cells(self) -> tuple[CellEnded, ...]:
        """Cells whose effects the interpreter should have, in order."""
        return tuple(cell for turn in self.turns for cell in turn.cells if cell.kept)

    @property
    def names(self) -> tuple[str, ...]:
        """Variables that the cells have set, the latest last."""
        found: dict[str, None] = {}
        for cell in self.kept_cells:
            for name in names_set_by(cell.code):
                found.pop(name, None)
                found[name] = None
        return tuple(found)

    def after(self, event: ChatEvent) -> "History":
        """Return the history with one more event."""
        # A cell without an end event has ended by now.
        if self.running and isinstance(event, TurnStarted | TurnEnded | CellStarted):
            return self.settled().after(event)
        match event:
            case FileLoaded():
                others = tuple(file for file in self.files if file.path != event.path)
                return replace(self, files=(*others, event))
            case TurnStarted():
                turn = Turn(number=event.turn, message=event.message)
                return replace(self, turns=(*self.turns, turn), begun=event.turn)
            case TurnUndone():
                left = tuple(turn for turn in self.turns if turn.number != event.turn)
                return replace(self, turns=left)
            case ModelChosen():
                return replace(self, model=event.model)
            case PackagesAdded():
                new = tuple(name for name in event.packages if name not in self.packages)
                return replace(self, packages=(*self.packages, *new))
            case CellOutputDelta():
                return replace(self, printed=self.printed + event.text) if event.kept else self
            case CellStarted() | CellEnded() | ToolUsed() | TurnEnded():
                return self._after_step(event)
            case _:
                return self

    def settled(self) -> "History":
        """Return the history with an end for a cell that has none, as after a crash."""
        cut = cut_off_cell(self)
        return self if cut is None else self.after(cut)

    def _after_step(self, event: CellStarted | CellEnded | ToolUsed | TurnEnded) -> "History":
        """Change the last turn; ignore an event of a turn that was undone."""
        running = event if isinstance(event, CellStarted) else None
        if not self.turns or self.turns[-1].number != event.turn:
            return replace(self, running=running, printed="")
        turn, usage = self.turns[-1], self.usage
        match event:
            case CellStarted():
                turn = replace(
                    turn,
                    thoughts=(*turn.thoughts, event.thought),
                    remarks=(*turn.remarks, event.remark),
                )
                usage += event.usage
            case CellEnded():
                turn = replace(turn, steps=(*turn.steps, event))
            case ToolUsed():
                turn = replace(turn, steps=(*turn.steps, event))
                usage += event.usage
            case TurnEnded():
                turn = replace(turn, status=event.status, answer=event.text, error=event.error)
                usage += event.usage
        turns = (*self.turns[:-1], turn)
        return replace(self, turns=turns, usage=usage, running=running, printed="")


def history_of(events: Iterable[ChatEvent]) -> History:
    """Build the history of a session from its first event on."""
    history = History()
    for event in events:
        history = history.after(event)
    return history.settled()


def cut_off_cell(history: History) -> CellEnded | None:
    """Return the end of a cell that was cut off, with its output; None without such a cell."""
    if history.running is None:
        return None
    parts = (history.printed.rstrip(), CUT_OFF)
    return CellEnded(
        turn=history.running.turn,
        step=history.running.step,
        code=history.running.code,
        observation="\n".join(part for part in parts if part),
        failed=True,
        kept=False,
        artifacts=(),
        duration_s=0.0,
    )


def names_set_by(code: str) -> tuple[str, ...]:
    """Return the names that a cell assigns at its top level; none if the code does not parse."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found: dict[str, None] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[statement.name] = None
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return tuple(name for name in found if not name.startswith("_"))
