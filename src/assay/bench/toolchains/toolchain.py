"""Interface of a toolchain: what it needs, whether it is installed, and how tests run with it.

Includes the query and installation of Debian packages.
"""

import os
import shlex
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

import anyio

from assay.bench.exercise import Exercise, Language
from assay.contracts.errors import AssayError
from assay.contracts.ports import SandboxBackend

OnNotice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where toolchain files are searched and stored."""

    cache_dir: Path
    """Downloaded files; each language has a separate folder that sandboxes can read."""
    search_path: tuple[str, ...]
    pip_environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def of(self, language: Language) -> Path:
        return self.cache_dir / "toolchains" / language


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A missing requirement."""

    what: str
    fix: str
    """What the user can do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The found toolchain of one language."""

    language: Language
    folder: Path
    """The folder of downloaded files."""
    missing: tuple[Missing, ...] = ()
    read_only: tuple[Path, ...] = ()
    """Paths of this machine that sandboxes need."""
    search_path: tuple[str, ...] = ()
    """Program folders that precede those of the machine."""

    @property
    def ready(self) -> bool:
        return not self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The commands for the tests of one exercise."""

    bare: str
    """For a shell in the exercise's folder; its exit code decides, as in the original harness."""
    check: str
    """The same from the workspace root, in the form that the verifier supports best."""


class Toolchain(Protocol):
    """One language."""

    @property
    def language(self) -> Language: ...

    @property
    def versions(self) -> tuple[tuple[str, ...], ...]:
        """Return commands that print versions in a sandbox; the first line of each is shown."""
        ...

    def find(self, place: Place) -> Kit:
        """Find the toolchain. Runs nothing."""
        ...

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        """Download the missing parts that are available.

        Raises:
            AssayError: If a part is not available; the hint says what the user can do.
        """
        ...

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        """Return what this exercise needs that is missing; empty if nothing is."""
        ...

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        """Return the commands for the tests of an exercise."""
        ...

    def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> Awaitable[None]:
        """Build the parts once that every run would otherwise build."""
        ...


def with_variables(variables: Mapping[str, str], command: str) -> str:
    """Put variables in front of a command."""
    said = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f"{said} {command}" if said else command


def in_folder(folder: PurePosixPath, command: str) -> str:
    """Return a command for the workspace root that runs in one of its folders."""
    return f"cd {shlex.quote(str(folder))} && {command}" if folder.parts else command


def package(what: str, name: str) -> Missing:
    """Describe a missing Debian package."""
    return Missing(what=what, fix=f"apt-get install {name}")


async def install_packages(names: Sequence[str], on_notice: OnNotice) -> None:
    """Install Debian packages.

    Raises:
        AssayError: If this is not Debian, the user is not root, or the installation fails.
    """
    said = f"apt-get install {' '.join(names)}"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise AssayError("packages can be installed by root on Debian only", hint=f"run `{said}`")
    on_notice(f"installing {', '.join(names)}")
    env = {"DEBIAN_FRONTEND": "noninteractive", "PATH": os.defpath, "LANG": "C.UTF-8"}
    base = ["apt-get", "-y", "-qq", "--no-install-recommends"]
    if await run_quietly([*base, "install", *names], env=env):
        # The package lists may be missing or old.
        await run_quietly(["apt-get", "-qq", "update"], env=env)
        if problem := await run_quietly([*base, "install", *names], env=env):
            raise AssayError(f"{said}: {problem}", hint="install them by hand")


async def run_quietly(
    command: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run a program to its end; returns the error, or an empty string."""
    try:
        result = await anyio.run_process(command, check=False, env=env, cwd=cwd)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if result.returncode == 0:
        return ""
    lines = (result.stderr or result.stdout).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"{command[0]} ended with exit code {result.returncode}"


def first_on(search_path: Sequence[str], program: str) -> Path | None:
    """Return the path of a program."""
    found = shutil.which(program, path=os.pathsep.join(search_path))
    return Path(found) if found else None
