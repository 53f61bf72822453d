"""What came of one exercise, as it is written down."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydantic import TypeAdapter

from assay.bench.exercise import Language, Track
from assay.contracts.messages import Usage


class Status(StrEnum):
    """How one exercise ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    """Not solved, and the last tests did not end in time."""
    MALFORMED = "malformed"
    """Not solved, and the last reply could not be used."""
    EXHAUSTED_CONTEXT = "exhausted_context"
    """Not solved, and the model could not read more."""
    BUDGET = "budget"
    """Not solved when time, tokens or money for it were used up."""
    TAMPERED = "tampered"
    """Looked solved, and was forged."""
    REFUSED = "refused"
    """The model or its provider would not answer."""
    NOT_RUN = "not_run"
    """What it needs is not on this machine: no word about the model."""
    INFRASTRUCTURE = "infrastructure"
    """A part of Assay or the model's provider failed, also when tried again: no word either."""


COUNTED: Final = frozenset(Status) - {Status.NOT_RUN, Status.INFRASTRUCTURE}
"""What rates are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One proposal and what the tests said of it."""

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
    """One exercise, done once."""

    exercise: str
    language: Language
    repeat: int
    """From 1."""
    track: Track
    status: Status
    reason: str = ""
    """One line for a person."""
    tries: tuple[Try, ...] = ()
    """Each time that hidden or final tests were run by the harness."""
    attempts: int = 0
    """Proposals that were made, also within a try."""
    usage: Usage = field(default_factory=Usage)
    malformed: int = 0
    """Replies that could not be used."""
    lazy_comments: int = 0
    model_s: float = 0.0
    wall_s: float = 0.0
    retries: int = 0
    """How often it was begun again because a part of Assay or the provider failed."""

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
        """Whether it was solved at this try or before."""
        return any(one.passed for one in self.tries[:number])


RESULT: Final = TypeAdapter(Result)
