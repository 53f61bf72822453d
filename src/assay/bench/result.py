"""Stored result of one exercise."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import TypeAdapter

from assay.bench.exercise import Language, Track
from assay.contracts.messages import Usage


class Status(StrEnum):
    """The final state of one exercise."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    """Not solved; the last tests timed out."""
    MALFORMED = "malformed"
    """Not solved; the last reply was invalid."""
    EXHAUSTED_CONTEXT = "exhausted_context"
    """Not solved; the context of the model was full."""
    BUDGET = "budget"
    """Not solved; time, tokens or money were used up."""
    TAMPERED = "tampered"
    """Solved by appearance only: a forgery."""
    REFUSED = "refused"
    """The model or its provider refused."""
    NOT_RUN = "not_run"
    """A requirement is missing on this machine: no statement about the model."""
    INFRASTRUCTURE = "infrastructure"
    """Assay or the model's provider failed, also after retries: no statement about the model."""


COUNTED: Final = frozenset(Status) - {Status.NOT_RUN, Status.INFRASTRUCTURE}
"""The states that count in rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One proposal and its test result."""

    passed: bool
    by_exit_code: bool
    proven: bool
    reason: str
    timed_out: bool = False
    tests_passed: int = 0
    tests_total: int = 0
    tests_s: float = 0.0
    cpu_s: float = 0.0
    syntax_errors: int = 0
    indentation_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One repetition of one exercise."""

    exercise: str
    language: Language
    repeat: int
    """From 1."""
    track: Track
    status: Status
    reason: str = ""
    """One line for the user."""
    tries: tuple[Try, ...] = ()
    """Each run of hidden or final tests by the harness."""
    attempts: int = 0
    """Number of proposals, including those within a try."""
    usage: Usage = field(default_factory=Usage)
    malformed: int = 0
    """Number of invalid replies."""
    lazy_comments: int = 0
    model_s: float = 0.0
    wall_s: float = 0.0
    retries: int = 0
    """Number of restarts because Assay or the provider failed."""

    @property
    def key(self) -> str:
        return f"{self.exercise}#{self.repeat}"

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    @property
    def counted(self) -> bool:
        return self.status in COUNTED

    def passed_by(self, number: int) -> bool:
        """Return whether it was solved at or before this try."""
        return any(one.passed for one in self.tries[:number])


RESULT: Final = TypeAdapter(Result)
