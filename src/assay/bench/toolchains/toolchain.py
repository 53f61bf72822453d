"""What a language needs on this machine, whether it is there, and how its tests are run with it."""

import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from assay.bench.exercise import Exercise, Language
from assay.contracts.ports import SandboxBackend

OnNotice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where parts are looked for and kept."""

    cache_dir: Path
    """Fetched parts; each language has a folder of its own, which sandboxes can read."""
    search_path: tuple[str, ...]
    pip_environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def of(self, language: Language) -> Path:
        return self.cache_dir / "toolchains" / language


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Something that is needed and not there."""

    what: str
    fix: str
    """What a person would do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What was found for one language."""

    language: Language
    folder: Path
    """Where fetched parts are."""
    missing: tuple[Missing, ...] = ()
    read_only: tuple[Path, ...] = ()
    """What sandboxes have to see of this machine for it."""
    search_path: tuple[str, ...] = ()
    """Folders with programs that go before those of the machine."""

    @property
    def ready(self) -> bool:
        return not self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """How the tests of one exercise are run."""

    bare: str
    """For a shell in the exercise's folder; its exit code decides, as in the original harness."""
    check: str
    """The same from the root of the workspace, as the verifier understands it best."""


class Toolchain(Protocol):
    """One language."""

    @property
    def language(self) -> Language: ...

    @property
    def versions(self) -> tuple[tuple[str, ...], ...]:
        """Commands that say in a sandbox what is there; the first line of each is shown."""
        ...

    def find(self, place: Place) -> Kit:
        """Look what is there. Nothing is run."""
        ...

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        """Fetch what can be fetched of what is missing.

        Raises:
            AssayError: If it cannot be had; the hint says what a person can do.
        """
        ...

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        """Say what this one exercise needs that the kit has not; empty if it has all."""
        ...

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        """Return how the tests of an exercise are run."""
        ...

    def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> Awaitable[None]:
        """Make ready, once, what would otherwise be built anew for each run."""
        ...


def with_variables(variables: Mapping[str, str], command: str) -> str:
    """Put variables in front of a command."""
    said = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f"{said} {command}" if said else command


def in_folder(folder: PurePosixPath, command: str) -> str:
    """Return a command for the root of the workspace that runs in a folder of it."""
    return f"cd {shlex.quote(str(folder))} && {command}" if folder.parts else command
