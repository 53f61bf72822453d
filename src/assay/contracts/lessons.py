"""What a failure leaves behind, and the moments at which it is remembered."""

from dataclasses import dataclass
from typing import Literal

Moment = Literal["plan", "action", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """What is going on when lessons are looked for."""

    moment: Moment
    goal: str
    """The goal's statement."""
    text: str = ""
    """At the action: the command or code proposed. After a failure: its account."""
    signature: str = ""
    """After a failure: what makes it the same as another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One line worth showing to the model, and where it comes from."""

    id: str
    text: str
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt, after the independent check spoke."""

    goal: str
    signature: str
    """Type, normalised message and place: equal for failures that are the same."""
    message: str
    action: str
    """The code or command that led to it, trimmed."""
    language: str = ""
    tool: str = ""
    """What found it: `pytest`, `cargo`, a command."""
    fix: str = ""
    """The diff that made it go away; empty while unknown."""
    lesson: str = ""
    """One line for the next time; empty while unknown."""
    run: str = ""
    environment: str = ""
    """Digest of interpreter and packages: a lesson may not hold elsewhere."""
