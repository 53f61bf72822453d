"""Events of a chat session: the closed list of what can happen in one.

Every view is built from these events, and a session on disk is a list of them. The user's message,
the model's reasoning, the code and its results are separate fields.
"""

from dataclasses import dataclass
from typing import Final, Literal

from assay.contracts.messages import Usage

READY_NAMES: Final = (("np", "numpy"), ("pd", "pandas"), ("plt", "matplotlib.pyplot"))
"""Names that every cell has without an import, with the module that each stands for."""

ExhibitSource = Literal["figure", "table", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """An artifact of a session: a figure, a table or a file that a cell wrote."""

    name: str
    """File name in the session's folder, unique there."""
    media_type: str
    """Untrusted, as the content is."""
    size_bytes: int
    sha256: str
    source: ExhibitSource
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
    kind: Literal["turn_began"] = "turn_began"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechArrived:
    """A piece of a reply while the model writes it. Not stored: later events hold the text."""

    text: str
    kind: Literal["speech_arrived"] = "speech_arrived"


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
    kind: Literal["cell_began"] = "cell_began"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutputDelta:
    """A piece of a running cell's output."""

    text: str
    kept: bool = True
    """Whether the piece is stored, as the beginning of a cell's output is."""
    kind: Literal["cell_printed"] = "cell_printed"


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
    artifacts: tuple[Exhibit, ...]
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
    | SpeechArrived
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
    return isinstance(event, SpeechArrived | StateRestoring)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAsk:
    """A tool call that the user must approve first."""

    tool: str
    description: str
    arguments: str
    """Arguments as JSON."""
