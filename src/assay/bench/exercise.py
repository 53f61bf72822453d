"""One exercise of a suite: what is shown, what decides, and what nobody who solves it may see."""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Final, Literal

from assay.contracts.workspace import Tree

Language = Literal["python", "javascript", "go", "rust", "cpp", "java"]
LANGUAGES: Final[tuple[Language, ...]] = ("python", "javascript", "go", "rust", "cpp", "java")

Track = Literal["blind", "blind+exec", "agentic"]
TRACKS: Final[tuple[Track, ...]] = ("blind", "blind+exec", "agentic")

TEST_TIMEOUT_S: Final = 180.0
"""For one run of an exercise's tests, as the original harness has it."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise as it was read from its suite; which commands run its tests is not part of it."""

    id: str
    """Unique in its suite: `python/wordy`, `HumanEval/12`."""
    language: Language
    docs: str
    """What a person would be told."""
    workspace: Tree
    """What whoever solves it starts from, without tests."""
    solution: tuple[PurePosixPath, ...]
    """The files to write. All of them are in the workspace, as stubs."""
    tests: Tree
    """What decides. In sight only where the track says so."""
    reference: Tree = field(default_factory=Tree)
    """A solution that is right. Goes into a sandbox only to prove that the tests accept it."""
    reference_setup: Tree = field(default_factory=Tree)
    """What the reference needs besides and a solution need not have: a manifest with crates."""
    folder: PurePosixPath = PurePosixPath()
    """Where in the workspace the tests are run."""
    command: str = ""
    """What runs the tests, if the suite says it; empty: whatever is usual for the language."""
    allowed: tuple[str, ...] = ()
    """Globs of what may be written; empty: the files of `solution`."""

    @property
    def writable(self) -> tuple[str, ...]:
        return self.allowed or tuple(str(path) for path in self.solution)

    @property
    def pristine(self) -> Tree:
        """The workspace with its tests, as it is judged."""
        return self.workspace.with_files(self.tests.files)

    def prepared_for_reference(self) -> "Exercise":
        """Return the exercise with what its reference needs besides: a manifest with crates."""
        given = self.workspace.with_files(self.reference_setup.files)
        return replace(self, workspace=given)

    @property
    def stub(self) -> Tree:
        """The solution files as they are given."""
        return Tree(files={path: self.workspace.files[path] for path in self.solution})

    @property
    def file_name(self) -> str:
        """The id as one component of a path."""
        return self.id.replace("/", "--")

    @cached_property
    def digest(self) -> str:
        """What tells two versions of an exercise apart, its reference included."""
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
    """Exercises that belong together, and where they come from."""

    name: str
    source: str
    """What a person calls the place they were read from: a commit, or the digest of a file."""
    exercises: tuple[Exercise, ...]

    @cached_property
    def digest(self) -> str:
        joined = "".join(exercise.digest for exercise in self.exercises)
        return hashlib.sha256(joined.encode()).hexdigest()
