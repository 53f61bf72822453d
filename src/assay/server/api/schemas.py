"""Request and response models of sessions and runs, and text types for request fields."""

import base64
import binascii
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from assay.contracts.chat import CellEnded, StoredArtifact, Turn
from assay.contracts.errors import PathOutsideWorkspaceError, UsageError
from assay.contracts.goal import RunRequest
from assay.contracts.jsonable import jsonable
from assay.contracts.messages import Usage
from assay.contracts.verdict import Grade
from assay.server.db.models import RunRow, RunState
from assay.server.services.run_progress import RunProgress

_LONGEST_PATH: Final = 1024
_LONGEST_NAME_BYTES: Final = 255


def writable(text: str) -> str:
    """Return text that every store accepts; raise `ValueError` for other text."""
    # A lone surrogate has no UTF-8, and a NUL ends the text in some databases.
    if "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("must not contain NUL or half of a surrogate pair")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def text_of(text: str) -> str:
    """Return text without lone surrogates, which a model or program may have written."""
    return text.encode("utf-8", "replace").decode()


def _clean(value: object) -> object:
    return text_of(value) if isinstance(value, str) else value


CleanText = Annotated[str, BeforeValidator(_clean)]
"""Text of a response that a model or program may have written."""
Line = Annotated[str, StringConstraints(max_length=200), AfterValidator(writable)]
"""A title or a name."""
Message = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200_000, pattern=r"\S"),
    AfterValidator(writable),
    AfterValidator(_not_blank),
]
ModelName = Annotated[
    str,
    StringConstraints(max_length=200),
    AfterValidator(writable),
    Field(description="`auto`, `local`, `PROVIDER:MODEL`; empty: as the service is set up"),
]
Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", examples=["brisk-otter-4f2a"])]
"""Id of a session or a run."""
Limit = Annotated[int, Query(ge=1, le=200, description="Maximum number of entries")]
Before = Annotated[
    float | None, Query(description="Only what is older than this moment", allow_inf_nan=False)
]
FilePath = Annotated[str, Path(max_length=_LONGEST_PATH, examples=["data/sales.csv"])]


def workspace_path(text: str) -> PurePosixPath:
    """Return a path in a workspace.

    Raises:
        PathOutsideWorkspaceError: If it leads out of the workspace, or names no file.
    """
    path = PurePosixPath(text)
    wrong = path.is_absolute() or ".." in path.parts or not path.name or text.endswith("/")
    try:
        long = any(len(part.encode()) > _LONGEST_NAME_BYTES for part in path.parts)
    except UnicodeEncodeError:
        wrong, long = True, False
    if wrong or long or "\x00" in text or len(text) > _LONGEST_PATH:
        raise PathOutsideWorkspaceError(f"{text[:100]!r} is not the path of a file in a workspace")
    return path


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Out(BaseModel):
    """Base class of responses, which read the attributes of rows and results."""

    model_config = ConfigDict(from_attributes=True)


class NewSession(_In):
    """A session to create."""

    title: Line = Field(default="", examples=["Sales of the north"])
    model: ModelName = Field(default="", examples=["auto"])


class RenameRequest(_In):
    """A new title for a session."""

    title: Line = Field(examples=["Sales of the south"])


class MessageRequest(_In):
    """A message to the model."""

    message: Message = Field(examples=["What is the mean price in sales.csv?"])


class ChatRequest(_In):
    """A message, in an existing or a new session."""

    message: Message = Field(examples=["What is 2 ** 64?"])
    session_id: str | None = Field(
        default=None, pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", examples=[None]
    )
    model: ModelName = Field(default="", examples=[""])


class SessionShape(Out):
    """One session."""

    id: str = Field(examples=["brisk-otter-4f2a"])
    title: str = Field(examples=["Sales of the north"])
    created_at: float = Field(description="Seconds since the epoch", examples=[1763280000.0])
    updated_at: float = Field(examples=[1763280060.5])
    turns: int = Field(examples=[2])
    model: str = Field(examples=["openai:gpt-5"])
    busy: bool = Field(description="Whether a turn is under way")


class SessionList(Out):
    """Sessions, the last used one first."""

    sessions: list[SessionShape]


class TurnBegun(Out):
    """A started turn; its events follow in the session's stream."""

    session_id: str = Field(examples=["brisk-otter-4f2a"])
    turn: int = Field(examples=[1])


class Cancelled(Out):
    """Whether a turn was running."""

    cancelled: bool


class Undone(Out):
    """The turn that was undone."""

    turn: int


class FileShape(Out):
    """A file of a workspace."""

    path: str = Field(examples=["data/sales.csv"])
    size_bytes: int = Field(examples=[48211])


class FileList(Out):
    """Files, by path."""

    files: list[FileShape]


class LoadedFile(FileShape):
    """A file that was added to the workspace."""

    about: str = Field(description="What the model sees of it", examples=["3 rows, 2 columns"])


class ArtifactShape(Out):
    """An artifact of a session. Its content and media type are untrusted."""

    name: str = Field(examples=["figure-1.png"])
    media_type: str = Field(examples=["image/png"])
    size_bytes: int = Field(examples=[20481])
    sha256: str
    source: Literal["figure", "table", "file"]
    path: str = Field(description="Where a cell wrote it; empty if it was only shown")
    url: str = Field(examples=["/v1/sessions/brisk-otter-4f2a/artifacts/figure-1.png"])


class ArtifactList(Out):
    """Artifacts of a session, the oldest first."""

    artifacts: list[ArtifactShape]


class UsageShape(Out):
    """Tokens, calls and cost."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    calls: int = 0
    cost_usd: float | None = Field(default=0.0, description="null if the price is not known")
    saved_usd: float = 0.0


class StepShape(Out):
    """One cell or tool call of a turn."""

    thought: CleanText = Field(examples=["I compute it."])
    code: CleanText = Field(examples=["print(2 ** 64)"])
    observation: CleanText = Field(examples=["18446744073709551616"])
    failed: bool
    remark: CleanText = Field(
        default="", description="What the model wrote after the code, before it saw the output"
    )


class ChatAnswer(Out):
    """A whole turn: the model's text, the code and its results, and the answer."""

    thought: CleanText = Field(description="Before the last cell", examples=["I compute it."])
    code: CleanText = Field(description="Of the last cell", examples=["print(2 ** 64)"])
    observation: CleanText = Field(
        description="What the last cell printed and showed", examples=["18446744073709551616"]
    )
    answer: CleanText = Field(examples=["It is 18446744073709551616."])
    session_id: str = Field(examples=["brisk-otter-4f2a"])
    turn: int = Field(examples=[1])
    status: Literal["answered", "out_of_steps", "interrupted", "failed"]
    steps: list[StepShape]
    artifacts: list[ArtifactShape]
    usage: UsageShape


def artifact_of(artifact: StoredArtifact, session_id: str) -> ArtifactShape:
    """Build the response for an artifact."""
    url = f"/v1/sessions/{session_id}/artifacts/{artifact.name}"
    return ArtifactShape(**jsonable(artifact), url=url)


def answer_of(turn: Turn, session_id: str, usage: Usage) -> ChatAnswer:
    """Build the response for a finished turn."""
    steps = list(_steps(turn))
    cells = [
        shown for shown, step in zip(steps, turn.steps, strict=True) if isinstance(step, CellEnded)
    ]
    last = cells[-1] if cells else StepShape(thought="", code="", observation="", failed=False)
    return ChatAnswer(
        thought=last.thought,
        code=last.code,
        observation=last.observation,
        answer=turn.answer,
        session_id=session_id,
        turn=turn.number,
        status=turn.status or "interrupted",
        steps=steps,
        artifacts=[artifact_of(made, session_id) for cell in turn.cells for made in cell.artifacts],
        usage=UsageShape.model_validate(usage),
    )


def _steps(turn: Turn) -> Iterator[StepShape]:
    # Only cells have thoughts and remarks apart from the step.
    spoken = iter(zip(turn.thoughts, turn.remarks, strict=True))
    for step in turn.steps:
        if isinstance(step, CellEnded):
            thought, remark = next(spoken, ("", ""))
            code, seen = step.code, step.observation
        else:
            thought, remark = step.thought, ""
            code, seen = f"{step.tool}({step.arguments})", step.answer
        yield StepShape(
            thought=thought, code=code, observation=seen, failed=step.failed, remark=remark
        )


_MOST_FILES: Final = 2000
Command = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(writable)]
Text = Annotated[str, AfterValidator(writable)]


class BudgetRequest(_In):
    """Budget of a run; omitted values come from the settings."""

    attempts: int | None = Field(default=None, ge=1, le=200, examples=[8])
    wall_s: float | None = Field(default=None, gt=0, le=86_400, examples=[600])
    usd: float | None = Field(default=None, ge=0, le=10_000, examples=[1.5])
    tokens: int | None = Field(default=None, ge=1, le=10**10, examples=[200_000])


class FileUpload(_In):
    """A file of the workspace, as text or base64."""

    path: Line = Field(examples=["anagrams.py"])
    text: Text | None = Field(default=None, examples=["def group(words):\n    pass\n"])
    content_base64: str | None = None

    def content(self) -> bytes:
        """Return the content of the file.

        Raises:
            UsageError: If there is neither text nor base64, or both, or it is not base64.
        """
        if (self.text is None) == (self.content_base64 is None):
            raise UsageError(f"{self.path!r}: give either text or content_base64")
        if self.text is not None:
            return self.text.encode()
        try:
            return base64.b64decode(self.content_base64 or "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise UsageError(f"{self.path!r}: content_base64 is not base64") from error


class NewRun(_In):
    """A goal, its checks, and the files of the workspace."""

    goal: Message = Field(examples=["Make the tests pass."])
    check: Command | list[Command] | None = Field(
        default=None,
        description="A command line that decides, or several. Empty: test files decide, or "
        "checks that the agent writes first.",
        examples=[["pytest -q"]],
    )
    tests: list[Line] = Field(
        default_factory=list[Line],
        max_length=200,
        description="Files that the agent reads and does not change",
        examples=[["test_anagrams.py"]],
    )
    model: ModelName = Field(default="", examples=["auto"])
    budget: BudgetRequest = Field(default_factory=BudgetRequest)
    files: list[FileUpload] = Field(default_factory=list[FileUpload], max_length=_MOST_FILES)

    def checks(self) -> tuple[str, ...]:
        """Return the check commands."""
        if self.check is None:
            return ()
        return (self.check,) if isinstance(self.check, str) else tuple(self.check)

    def contents(self) -> dict[PurePosixPath, bytes]:
        """Return the files by path; raise the errors of `workspace_path` and `content`."""
        return {workspace_path(file.path): file.content() for file in self.files}


def _or_none(value: Any) -> Any:
    return value or None


class RunShape(Out):
    """A run in a list."""

    id: str = Field(examples=["calm-heron-91c3"])
    goal: str = Field(examples=["Make the tests pass."])
    status: RunState
    created_at: float = Field(examples=[1763280000.0])
    ended_at: float | None
    model: str = Field(examples=["auto"])
    grade: Annotated[Grade | None, BeforeValidator(_or_none)] = Field(
        description="How strong the proof of an accepted run is", examples=["proven"]
    )
    error: Annotated[str | None, BeforeValidator(_or_none)] = Field(
        description="Why it failed, if a part of Assay did"
    )


class RunList(Out):
    """Runs, the newest first."""

    runs: list[RunShape]


class PlanStep(Out):
    """One step of the plan."""

    id: int
    text: CleanText
    done: bool


class AttemptShape(Out):
    """One attempt."""

    n: int = Field(validation_alias="number")
    action: str
    status: str = Field(examples=["accepted"])
    changed_files: list[CleanText] = Field(validation_alias="changed")
    tests: dict[str, int] = Field(description="How many ended how", examples=[{"passed": 4}])
    note: CleanText


class TestMatrixShape(Out):
    """Result of each test in each attempt; null if it was not reported."""

    tests: list[CleanText]
    attempts: list[int]
    cells: list[list[str | None]] = Field(description="By test, then by attempt")


class UsedOf(Out):
    """Used amount and cap."""

    used: float | None = Field(
        description="Null if it is unknown, for example without a known price"
    )
    limit: float | None = Field(description="Null is no cap")


class BudgetShape(Out):
    """Usage of a run so far."""

    attempts: UsedOf
    tokens: UsedOf
    usd: UsedOf
    wall_s: UsedOf


class RunDetails(RunShape):
    """A run with all its details."""

    checks: list[CleanText]
    plan: list[PlanStep]
    attempts: list[AttemptShape]
    test_matrix: TestMatrixShape
    budget: BudgetShape
    reason: CleanText = Field(description="Why it ended as it did, in one line")
    certificate: bool = Field(description="Whether there is one to fetch")


class DiffShape(Out):
    """Changes of a run."""

    diff: CleanText


def details_of(row: RunRow, progress: RunProgress, asked: RunRequest) -> RunDetails:
    """Build the detailed response for a run."""
    outcome, matrix, usage = progress.outcome, progress.test_matrix, progress.usage
    limits = progress.spec.limits if progress.spec else asked.limits
    shown = RunShape.model_validate(row)
    if row.status == "accepted" and outcome and outcome.grade:
        shown.grade = outcome.grade
    return RunDetails(
        **shown.model_dump(),
        checks=list(progress.checks or asked.checks),
        plan=[
            PlanStep(id=number, text=text, done=row.status == "accepted")
            for number, text in enumerate(progress.steps, 1)
        ],
        attempts=[AttemptShape.model_validate(one) for one in progress.attempts],
        test_matrix=TestMatrixShape(
            tests=list(matrix.tests),
            attempts=[one.attempt for one in matrix.rows],
            cells=[[one.statuses.get(test) for one in matrix.rows] for test in matrix.tests],
        ),
        budget=BudgetShape(
            attempts=UsedOf(used=len(progress.attempts), limit=limits.attempts),
            tokens=UsedOf(used=usage.input_tokens + usage.output_tokens, limit=asked.budget_tokens),
            usd=UsedOf(used=usage.cost_usd, limit=asked.budget_usd),
            wall_s=UsedOf(used=progress.wall_s, limit=limits.wall_s),
        ),
        reason=outcome.reason if outcome else "",
        certificate=bool(outcome and outcome.certificate),
    )
