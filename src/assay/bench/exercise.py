"""One exercise of a suite: its visible files, its tests and its hidden reference."""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final, Literal

from assay.contracts.workspace import Tree

Language = Literal["python", "javascript", "go", "rust", "cpp", "java"]
LANGUAGES: Final[tuple[Language, ...]] = ("python", "javascript", "go", "rust", "cpp", "java")

Track = Literal["blind", "blind+exec", "agentic"]

TEST_TIMEOUT_S: Final = 180.0
"""For one run of an exercise's tests, as in the original harness."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise as read from its suite, without the commands for its tests."""

    id: str
    """Unique in its suite: `python/wordy`, `HumanEval/12`."""
    language: Language
    docs: str
    """The task description."""
    workspace: Tree
    """The solver's initial files, without tests."""
    solution: tuple[PurePosixPath, ...]
    """The files to write. All of them are in the workspace, as stubs."""
    tests: Tree
    """The tests. Visible only on tracks that allow it."""
    reference: Tree = field(default_factory=Tree)
    """A correct solution. Enters a sandbox only to show that the tests accept it."""
    reference_setup: Tree = field(default_factory=Tree)
    """Files that only the reference needs: a manifest with crates."""
    folder: PurePosixPath = PurePosixPath()
    """The folder of the workspace in which the tests run."""
    command: str = ""
    """The suite's test command; empty: the default of the language."""
    allowed: tuple[str, ...] = ()
    """Globs of writable files; empty: the files of `solution`."""

    @property
    def writable(self) -> tuple[str, ...]:
        return self.allowed or tuple(str(path) for path in self.solution)

    @property
    def pristine(self) -> Tree:
        """Return the workspace with its tests, as the harness scores it."""
        return self.workspace.with_files(self.tests.files)

    def prepared_for_reference(self) -> "Exercise":
        """Return the exercise with the files that its reference needs: a manifest with crates."""
        given = self.workspace.with_files(self.reference_setup.files)
        return replace(self, workspace=given)

    @property
    def stub(self) -> Tree:
        """Return the initial solution files."""
        return Tree(files={path: self.workspace.files[path] for path in self.solution})

    @property
    def file_name(self) -> str:
        """Return the id as one component of a path."""
        return self.id.replace("/", "--")

    @cached_property
    def digest(self) -> str:
        """Return the digest of this version of the exercise, its reference included."""
        parts = (
            self.id,
            self.docs,
            self.command,
            str(self.folder),
            *self.writable,
            *(tree.digest for tree in (self.workspace, self.tests, self.reference)),
            self.reference_setup.digest,
        )
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A set of exercises and its source."""

    name: str
    source: str
    """The version of the source for a report: a commit, or the digest of a file."""
    exercises: tuple[Exercise, ...]

    @cached_property
    def digest(self) -> str:
        joined = "".join(exercise.digest for exercise in self.exercises)
        return hashlib.sha256(joined.encode()).hexdigest()
