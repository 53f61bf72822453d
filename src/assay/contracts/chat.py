"""Events of a chat session, and the state that is computed from them.

The list of events is closed. `history_of` computes the state of a session from its events; pure.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from assay.contracts.messages import Usage

READY_NAMES: Final = (("np", "numpy"), ("pd", "pandas"), ("plt", "matplotlib.pyplot"))
"""Names that every cell has without an import, with the module that each stands for."""

ArtifactSource = Literal["figure", "table", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """An artifact of a session: a figure, a table or a file that a cell wrote."""

    name: str
    """File name in the session's folder, unique there."""
    media_type: str
    """Untrusted, as the content is."""
    size_bytes: int
    sha256: str
    source: ArtifactSource
    path: str = ""
    """Path from the workspace root if a cell wrote the file; empty if it was only shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLoaded:
    """The user put a file into the workspace."""

    path: str
    size_bytes: int
    about: str
    """Summary of the content for a model: for example, columns and first rows of a table."""
    kind: Literal["file_loaded"] = "file_loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    turn: int
    """Counts from 1, including turns that were undone."""
    message: str
    kind: Literal["turn_started"] = "turn_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDelta:
    """A piece of a reply while the model writes it. Not stored: later events hold the text."""

    text: str
    kind: Literal["reply_delta"] = "reply_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStarted:
    """The model sent code to run."""

    turn: int
    step: int
    thought: str
    """Text of the reply before the code."""
    code: str
    usage: Usage
    """Usage of the reply; a reply with several cells counts it with the first one."""
    remark: str = ""
    """Text after the last code of a reply, written before the model saw the result."""
    kind: Literal["cell_started"] = "cell_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutputDelta:
    """A piece of a running cell's output."""

    text: str
    kept: bool = True
    """Whether the piece is stored, as the beginning of a cell's output is."""
    kind: Literal["cell_output_delta"] = "cell_output_delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnded:
    turn: int
    step: int
    code: str
    observation: str
    """Text that the model received: output, values, errors, shown and written files."""
    failed: bool
    kept: bool
    """Whether later cells see this cell's effects; if not, a rebuild of the state skips it."""
    artifacts: tuple[StoredArtifact, ...]
    duration_s: float
    kind: Literal["cell_ended"] = "cell_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUsed:
    turn: int
    step: int
    thought: str
    tool: str
    arguments: str
    """Arguments as JSON."""
    answer: str
    failed: bool
    usage: Usage
    kind: Literal["tool_used"] = "tool_used"


TurnStatus = Literal["answered", "out_of_steps", "interrupted", "failed"]


FailureType = Literal[
    "model-unavailable",
    "model-rate-limited",
    "model-refused",
    "context-too-long",
    "quota-exceeded",
    "executor-unavailable",
    "failed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnError:
    """Reason why a turn failed: a component that it needs did not work."""

    type: FailureType
    detail: str
    hint: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    turn: int
    status: TurnStatus
    text: str
    """The model's answer to the user, or what went wrong if there is none."""
    usage: Usage
    """Usage of the last reply only; the other replies are counted with their steps."""
    error: TurnError | None = None
    """Set if the status is `failed`; older records lack it."""
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUndone:
    """The last valid turn was undone, with the effects of its cells."""

    turn: int
    kind: Literal["turn_undone"] = "turn_undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRebuilt:
    """The interpreter was lost; Assay ran the cells of the session again in a new one."""

    why: str
    cells: int
    failed: int
    """Number of cells that fail now and did not fail before."""
    kind: Literal["state_rebuilt"] = "state_rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRestoring:
    """A new interpreter is about to run a cell of the session again. Not stored."""

    cell: int
    """Counts from 1."""
    cells: int
    kind: Literal["state_restoring"] = "state_restoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesAdded:
    """Cells can import these packages from here on."""

    packages: tuple[str, ...]
    """In pip's syntax."""
    kind: Literal["packages_added"] = "packages_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChosen:
    """This model answers from here on."""

    model: str
    kind: Literal["model_chosen"] = "model_chosen"


ChatEvent = (
    FileLoaded
    | TurnStarted
    | ReplyDelta
    | CellStarted
    | CellOutputDelta
    | CellEnded
    | ToolUsed
    | TurnEnded
    | TurnUndone
    | StateRebuilt
    | StateRestoring
    | PackagesAdded
    | ModelChosen
)


def is_passing(event: ChatEvent) -> bool:
    """Whether an event is shown but not stored."""
    if isinstance(event, CellOutputDelta):
        return not event.kept
    return isinstance(event, ReplyDelta | StateRestoring)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAsk:
    """A tool call that the user must approve first."""

    tool: str
    description: str
    arguments: str
    """Arguments as JSON."""


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
