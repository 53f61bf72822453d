"""What a project declares: its requirements, and its own metadata."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from assay.contracts.errors import PackageError
from assay.contracts.execution import EditableProject
from assay.environment.project_files import ENV_OFF

TEST_GROUPS: Final = frozenset({"dev", "test", "tests", "testing"})
"""Dependency groups and extras whose requirements belong to the environment."""
_LONGEST: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredEnvironment:
    """The packages that a project declares, and the files that declare them."""

    requirements: tuple[str, ...] = ()
    """Requirements without markers; after a lock, exact versions with hashes."""
    constraints: tuple[str, ...] = ()
    """Versions for packages that may not be required at all."""
    locked: bool = False
    """Whether the requirements are complete: no other package is installed."""
    project: EditableProject | None = None
    files: tuple[str, ...] = ()
    """The files that declare something, in the order in which Assay used them."""

    @property
    def empty(self) -> bool:
        return not self.requirements and self.project is None


@dataclass(slots=True, kw_only=True)
class ProjectMetadata:
    """The metadata of the project itself, from the files of its build system."""

    name: str = ""
    version: str = ""
    requires: list[str] = field(default_factory=list[str])
    extras: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Requirements by the canonical name of the extra."""
    groups: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Requirements by the canonical name of the dependency group."""
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    folders: list[str] = field(default_factory=list[str])
    """The folders from which the project is imported."""
    files: list[str] = field(default_factory=list[str])
    unread: list[str] = field(default_factory=list[str])
    """Fields that only a program can compute, as `setup.py: install_requires`."""

    @property
    def test_extras(self) -> list[str]:
        return [name for name in self.extras if name in TEST_GROUPS]

    def expanded(self, texts: Iterable[str], *, source: str) -> list[str]:
        """Replace references to the project's own extras by their requirements."""
        found: list[str] = []
        seen: set[str] = set()
        waiting = [*texts]
        while waiting:
            text = waiting.pop(0)
            requirement = parse(text, source=source)
            if self.name and canonicalize_name(requirement.name) == canonicalize_name(self.name):
                for extra in map(canonicalize_name, sorted(requirement.extras)):
                    if extra not in seen:
                        seen.add(extra)
                        waiting += self.extras.get(extra, [])
            else:
                found.append(text)
        return found


def parse(text: str, *, source: str) -> Requirement:
    """Parse one requirement of a file.

    Raises:
        PackageError: If it is invalid.
    """
    try:
        return Requirement(text[:_LONGEST])
    except (InvalidRequirement, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise PackageError(
            f"{source}: not a requirement: {text[:100]!r} ({reason})", hint=ENV_OFF
        ) from error


def applicable(text: str, *, source: str) -> str:
    """Return a requirement without its marker; empty if it does not apply here.

    Raises:
        PackageError: If it is invalid, or names a URL.
    """
    requirement = parse(text, source=source)
    if not applies(requirement, source=source):
        return ""
    if requirement.url:
        raise PackageError(
            f"{source}: {requirement.name!r} comes from a URL, and Assay installs from the package "
            "index only",
            hint=f"publish it, or install it into a virtual environment and use `--env PATH`; "
            f"{ENV_OFF}",
        )
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{canonicalize_name(requirement.name)}{extras}{requirement.specifier}"


def applies(requirement: Requirement, *, source: str) -> bool:
    """Return whether the marker of a requirement is true for this interpreter."""
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({"extra": ""})
    except (ValueError, RecursionError, KeyError) as error:
        raise PackageError(
            f"{source}: the marker of {requirement.name!r} cannot be evaluated: {error}",
            hint=ENV_OFF,
        ) from error
