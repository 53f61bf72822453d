"""A conversation so far, read from its events. Pure."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from assay.contracts.conversation import Usage
from assay.contracts.dialogue import (
    CellBegan,
    CellEnded,
    DialogueEvent,
    FileLoaded,
    ModelChosen,
    ToolUsed,
    TurnBegan,
    TurnEnded,
    TurnStatus,
    TurnUndone,
)

Step = CellEnded | ToolUsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a person said, and everything that came of it."""

    number: int
    message: str
    steps: tuple[Step, ...] = ()
    thoughts: tuple[str, ...] = ()
    """What was said before each piece of code that was run, in order."""
    status: TurnStatus | None = None
    """None if it was cut off."""
    answer: str = ""

    @property
    def cells(self) -> tuple[CellEnded, ...]:
        return tuple(step for step in self.steps if isinstance(step, CellEnded))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All turns that stand, the files that were loaded, and what it took."""

    turns: tuple[Turn, ...] = ()
    files: tuple[FileLoaded, ...] = ()
    """The last word on each path."""
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    begun: int = 0
    """How many turns were begun, undone ones too."""

    @property
    def kept_cells(self) -> tuple[CellEnded, ...]:
        """The cells whose effects the interpreter should have, in order."""
        return tuple(cell for turn in self.turns for cell in turn.cells if cell.kept)

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that the cells have set, the latest last."""
        found: dict[str, None] = {}
        for cell in self.kept_cells:
            for name in names_set_by(cell.code):
                found.pop(name, None)
                found[name] = None
        return tuple(found)

    def after(self, event: DialogueEvent) -> "History":
        """Return the history with one more event."""
        match event:
            case FileLoaded():
                others = tuple(file for file in self.files if file.path != event.path)
                return replace(self, files=(*others, event))
            case TurnBegan():
                turn = Turn(number=event.turn, message=event.message)
                return replace(self, turns=(*self.turns, turn), begun=event.turn)
            case TurnUndone():
                left = tuple(turn for turn in self.turns if turn.number != event.turn)
                return replace(self, turns=left)
            case ModelChosen():
                return replace(self, model=event.model)
            case CellBegan() | CellEnded() | ToolUsed() | TurnEnded():
                return self._after_step(event)
            case _:
                return self

    def _after_step(self, event: CellBegan | CellEnded | ToolUsed | TurnEnded) -> "History":
        """Change the last turn; an event of another one belongs to nothing that stands."""
        if not self.turns or self.turns[-1].number != event.turn:
            return self
        turn, usage = self.turns[-1], self.usage
        match event:
            case CellBegan():
                turn = replace(turn, thoughts=(*turn.thoughts, event.thought))
                usage += event.usage
            case CellEnded():
                turn = replace(turn, steps=(*turn.steps, event))
            case ToolUsed():
                turn = replace(turn, steps=(*turn.steps, event))
                usage += event.usage
            case TurnEnded():
                turn = replace(turn, status=event.status, answer=event.text)
                usage += event.usage
        return replace(self, turns=(*self.turns[:-1], turn), usage=usage)


def history_of(events: Iterable[DialogueEvent]) -> History:
    """Read a conversation from its first event on."""
    history = History()
    for event in events:
        history = history.after(event)
    return history


def names_set_by(code: str) -> tuple[str, ...]:
    """Return the names that a cell gives a value at its top level; none if it cannot be read."""
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
