"""Lessons and snippets that runs store for later runs, and the queries that recall them."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

RecallPoint = Literal["plan", "action", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallQuery:
    """The situation in which Assay looks for lessons."""

    moment: RecallPoint
    goal: str
    """The goal's statement."""
    text: str = ""
    """At planning: names that the tests need. At an action: the proposed command or code. After a
    failure: its text."""
    signature: str = ""
    """After a failure: the key that equal failures share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One line to show to the model, and its source."""

    id: str
    text: str
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt, after the verdict of the independent check."""

    goal: str
    signature: str
    """Type, normalized message and location: equal for failures that are the same."""
    message: str
    action: str
    """The code or command that caused it, truncated."""
    language: str = ""
    tool: str = ""
    """What detected it: `pytest`, `cargo`, a command."""
    fix: str = ""
    """The diff that fixed it; empty while unknown."""
    lesson: str = ""
    """One line of advice for later attempts; empty while unknown."""
    run: str = ""
    environment: str = ""
    """Digest of interpreter and packages: a lesson may not hold in another environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Reusable code, with the test that specifies its behavior.

    Both are self-contained: the test runs without the project that they come from.
    """

    names: tuple[str, ...]
    """Names of the functions and classes that it provides."""
    purpose: str
    """The goal of its run."""
    path: PurePosixPath
    source: str
    test_path: PurePosixPath
    test: str
    id: str = ""
    """Set by the store."""
    run: str = ""
    grade: str = ""
    """Grade of its run: `proven` or `checked`."""
