"""Request and response models for runs."""

import base64
import binascii
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from assay.contracts.errors import UsageError
from assay.contracts.verdict import Grade
from assay.runs.request import Commission
from assay.server.api.field_types import Line, Message, ModelName, workspace_path, writable
from assay.server.api.schemas.sessions import text_of
from assay.server.db.models import RunRow, RunState
from assay.server.services.run_progress import AttemptProgress, Progress

_MOST_FILES: Final = 2000
Command = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(writable)]
Text = Annotated[str, AfterValidator(writable)]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


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


class RunShape(BaseModel):
    """A run in a list."""

    id: str = Field(examples=["calm-heron-91c3"])
    goal: str = Field(examples=["Make the tests pass."])
    status: RunState
    created_at: float = Field(examples=[1763280000.0])
    ended_at: float | None
    model: str = Field(examples=["auto"])
    grade: Grade | None = Field(
        description="How strong the proof of an accepted run is", examples=["proven"]
    )
    error: str | None = Field(description="Why it failed, if a part of Assay did")

    @classmethod
    def of(cls, row: RunRow) -> Self:
        """Build the response for a run."""
        return cls(
            id=row.id,
            goal=row.goal,
            status=row.status,
            created_at=row.created_at,
            ended_at=row.ended_at,
            model=row.model,
            grade=Grade(row.grade) if row.grade else None,
            error=row.error or None,
        )


class RunList(BaseModel):
    """Runs, the newest first."""

    runs: list[RunShape]


class PlanStep(BaseModel):
    """One step of the plan."""

    id: int
    text: str
    done: bool


class AttemptShape(BaseModel):
    """One attempt."""

    n: int
    move: str
    status: str = Field(examples=["accepted"])
    changed_files: list[str]
    tests: dict[str, int] = Field(description="How many ended how", examples=[{"passed": 4}])
    note: str

    @classmethod
    def of(cls, one: AttemptProgress) -> "AttemptShape":
        """Build the response for an attempt."""
        return cls(
            n=one.number,
            move=one.move,
            status=one.status,
            changed_files=[text_of(path) for path in one.changed],
            tests=one.tests,
            note=text_of(one.note),
        )


class LatticeShape(BaseModel):
    """Result of each test in each attempt; null if it was not reported."""

    tests: list[str]
    attempts: list[int]
    cells: list[list[str | None]] = Field(description="By test, then by attempt")


class UsedOf(BaseModel):
    """Used amount and cap."""

    used: float | None = Field(
        description="Null if it is unknown, for example without a known price"
    )
    limit: float | None = Field(description="Null is no cap")


class BudgetShape(BaseModel):
    """Usage of a run so far."""

    attempts: UsedOf
    tokens: UsedOf
    usd: UsedOf
    wall_s: UsedOf


class RunDetails(RunShape):
    """A run with all its details."""

    checks: list[str]
    plan: list[PlanStep]
    attempts: list[AttemptShape]
    lattice: LatticeShape
    budget: BudgetShape
    reason: str = Field(description="Why it ended as it did, in one line")
    certificate: bool = Field(description="Whether there is one to fetch")


class DiffShape(BaseModel):
    """Changes of a run."""

    diff: str


def details_of(row: RunRow, progress: Progress, asked: Commission) -> RunDetails:
    """Build the detailed response for a run."""
    outcome, lattice, usage = progress.outcome, progress.lattice, progress.usage
    effort = progress.goal.effort if progress.goal else asked.effort
    if row.status == "accepted" and outcome and outcome.grade:
        row = replace(row, grade=outcome.grade)
    return RunDetails(
        **RunShape.of(row).model_dump(),
        checks=[text_of(check) for check in progress.checks or asked.checks],
        plan=[
            PlanStep(id=number, text=text_of(text), done=row.status == "accepted")
            for number, text in enumerate(progress.steps, 1)
        ],
        attempts=[AttemptShape.of(one) for one in progress.attempts],
        lattice=LatticeShape(
            tests=[text_of(test) for test in lattice.tests],
            attempts=[one.attempt for one in lattice.rows],
            cells=[
                [
                    ending.value if (ending := one.statuses.get(test)) else None
                    for one in lattice.rows
                ]
                for test in lattice.tests
            ],
        ),
        budget=BudgetShape(
            attempts=UsedOf(used=len(progress.attempts), limit=effort.attempts),
            tokens=UsedOf(used=usage.input_tokens + usage.output_tokens, limit=asked.budget_tokens),
            usd=UsedOf(used=usage.cost_usd, limit=asked.budget_usd),
            wall_s=UsedOf(used=progress.wall_s, limit=effort.wall_s),
        ),
        reason=text_of(outcome.reason) if outcome else "",
        certificate=bool(outcome and outcome.certificate),
    )
