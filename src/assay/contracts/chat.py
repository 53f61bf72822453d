"""A conversation with an agent that computes: the closed list of what happens in one.

Every view is drawn from these, and a session on disk is nothing but these: what a person said, what
the model thought, the code it ran and what came of it are told apart everywhere.
"""

from dataclasses import dataclass
from typing import Final, Literal

from assay.contracts.messages import Usage

READY_NAMES: Final = (("np", "numpy"), ("pd", "pandas"), ("plt", "matplotlib.pyplot"))
"""What every cell has without importing it: the name, and the module it stands for."""

ExhibitSource = Literal["figure", "table", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """A file that came out of a conversation: a figure, a table, something a cell wrote."""

    name: str
    """Of the file in the session's folder, unique there."""
    media_type: str
    """Untrusted, as is the content."""
    size_bytes: int
    sha256: str
    source: ExhibitSource
    path: str = ""
    """Where a cell wrote it, from the workspace root; empty if it was only shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLoaded:
    """A person put a file into the workspace."""

    path: str
    size_bytes: int
    about: str
    """What is in it, for a model: columns and first rows of a table, for example."""
    kind: Literal["file_loaded"] = "file_loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    turn: int
    """Counts from 1, undone ones too."""
    message: str
    kind: Literal["turn_began"] = "turn_began"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechArrived:
    """A piece of a reply, while it is being written. Not kept: what it amounts to is."""

    text: str
    kind: Literal["speech_arrived"] = "speech_arrived"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStarted:
    """The model decided to run code."""

    turn: int
    step: int
    thought: str
    """What it said before the code."""
    code: str
    usage: Usage
    """Of the reply; a reply with several cells counts with the first."""
    remark: str = ""
    """What it said after the last code of a reply, before it saw what came of it."""
    kind: Literal["cell_began"] = "cell_began"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOutputDelta:
    """A piece of what a running cell writes."""

    text: str
    kept: bool = True
    """Whether it is written down, as the beginning of what a cell prints is."""
    kind: Literal["cell_printed"] = "cell_printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnded:
    turn: int
    step: int
    code: str
    observation: str
    """All that the model was told of it: output, values, errors, what was shown and written."""
    failed: bool
    kept: bool
    """Whether later cells see what this one did; if not, it is left out when state is rebuilt."""
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
    """As JSON."""
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
    """Why a turn failed: a part that it needs did not do its work."""

    type: FailureType
    detail: str
    hint: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    turn: int
    status: TurnStatus
    text: str
    """What the model says to the person; what went wrong, if it came to no answer."""
    usage: Usage
    """Of the last reply alone; the others are with their steps."""
    error: TurnError | None = None
    """Set if the status is `failed`; older records do not have it."""
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUndone:
    """The last turn that stands is taken back, and what its cells did with it."""

    turn: int
    kind: Literal["turn_undone"] = "turn_undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRebuilt:
    """The interpreter was gone; the cells of the session were run again in a new one."""

    why: str
    cells: int
    failed: int
    """How many of them fail now that did not fail then."""
    kind: Literal["state_rebuilt"] = "state_rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRestoring:
    """A new interpreter is about to run a cell of the session again. Not kept."""

    cell: int
    """Counts from 1."""
    cells: int
    kind: Literal["state_restoring"] = "state_restoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesAdded:
    """From here on cells can import these packages."""

    packages: tuple[str, ...]
    """As pip writes them."""
    kind: Literal["packages_added"] = "packages_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChosen:
    """From here on this model answers."""

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
    """Whether an event is shown and not kept."""
    if isinstance(event, CellOutputDelta):
        return not event.kept
    return isinstance(event, SpeechArrived | StateRestoring)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAsk:
    """A tool that a person has to allow before it is used."""

    tool: str
    description: str
    arguments: str
    """As JSON."""
