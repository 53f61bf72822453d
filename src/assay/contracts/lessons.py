"""What runs leave behind for later ones, and the moments at which it is remembered."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

RecallPoint = Literal["plan", "action", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallQuery:
    """What is going on when lessons are looked for."""

    moment: RecallPoint
    goal: str
    """The goal's statement."""
    text: str = ""
    """At planning: names that the tests want. At the action: the command or code proposed. After a
    failure: its account."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Code that was of use once, with the test that says what it does.

    Both stand alone: nothing of the project they come from is needed to run the test.
    """

    names: tuple[str, ...]
    """Of the functions and classes that it is for."""
    purpose: str
    """The goal that it served."""
    path: PurePosixPath
    source: str
    test_path: PurePosixPath
    test: str
    id: str = ""
    """Given by the memory that keeps it."""
    run: str = ""
    grade: str = ""
    """By what its run was accepted: `proven` or `checked`."""
