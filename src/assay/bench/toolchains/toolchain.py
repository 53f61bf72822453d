"""Base of a toolchain: what it needs, whether it is installed, and how tests run with it.

Includes the installation of Debian packages.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import anyio

from assay.bench.exercise import Exercise, Language
from assay.contracts.errors import AssayError
from assay.contracts.ports import SandboxBackend
from assay.settings.load import Settings

OnNotice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A missing requirement."""

    what: str
    fix: str = "assay bench toolchains --install"
    """What the user can do about it."""
    packages: tuple[str, ...] = ()
    """Debian packages that provide it; none if Assay downloads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The toolchain of one language on this machine."""

    language: Language
    folder: Path
    """The folder of downloaded files."""
    missing: tuple[Missing, ...] = ()
    read_only: tuple[Path, ...] = ()
    """Paths of this machine that sandboxes need."""
    search_path: tuple[str, ...] = ()
    """Program folders that precede those of the machine."""
    version: str = ""
    """What the programs print in a sandbox; empty if that was not asked."""
    problem: str = ""
    """Why the installation failed; empty if it succeeded or was not tried."""

    @property
    def ready(self) -> bool:
        return not self.missing

    @property
    def missing_text(self) -> str:
        return f"missing: {', '.join(one.what for one in self.missing)}"

    @property
    def state(self) -> str:
        return f"ready    {self.version}" if self.ready else f"not run  {self.missing_text}"

    @property
    def fixes(self) -> tuple[str, ...]:
        tried = (f"not installed: {self.problem}",) if self.problem else ()
        fixes = (one.fix for one in self.missing)
        return tuple(dict.fromkeys(f"         {line}" for line in (*tried, *fixes)))

    def fields(self) -> dict[str, Any]:
        """Return all values for JSON output."""
        return {
            "ready": self.ready,
            "version": self.version,
            "missing": [{"what": one.what, "fix": one.fix} for one in self.missing],
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The commands for the tests of one exercise."""

    bare: str
    """For a shell in the exercise's folder; its exit code decides, as in the original harness."""
    check: str
    """The same from the workspace root, in the form that the verifier supports best."""


class Toolchain:
    """One language; a subclass overrides what differs."""

    language: Language
    versions: tuple[tuple[str, ...], ...]
    """Commands that print versions in a sandbox; the first line of each is shown."""
    programs: Mapping[str, str] = {}
    """The required programs, and the Debian package of each."""

    def find(self, settings: Settings) -> Installation:
        """Find the toolchain. Runs nothing."""
        folder = folder_of(settings, self.language)
        missing = (
            *(
                package(program, name)
                for program, name in self.programs.items()
                if find_program(settings, program) is None
            ),
            *self.missing_parts(folder),
        )
        if not missing:
            self.prepare(folder)
        return Installation(
            language=self.language,
            folder=folder,
            missing=missing,
            read_only=() if missing else (folder,),
        )

    def missing_parts(self, folder: Path) -> Iterable[Missing]:
        """Return the missing requirements apart from programs."""
        del folder
        return ()

    def prepare(self, folder: Path) -> None:
        """Write Assay's own files of a complete toolchain."""

    async def install(self, settings: Settings, on_notice: OnNotice) -> None:
        """Install the missing Debian packages, and download the other missing parts.

        Raises:
            AssayError: If a part is not available; the hint says what the user can do.
        """
        missing = self.find(settings).missing
        if names := [name for one in missing for name in one.packages]:
            await install_packages(names, on_notice)
        if any(not one.packages for one in missing):
            await self.download(settings, folder_of(settings, self.language), on_notice)

    async def download(self, settings: Settings, folder: Path, on_notice: OnNotice) -> None:
        """Download the parts that are not Debian packages into the folder."""

    def lacks(self, exercise: Exercise, installation: Installation) -> str:
        """Return what this exercise needs that is missing; empty if nothing is."""
        del exercise, installation
        return ""

    def commands(self, exercise: Exercise, installation: Installation) -> Commands:
        """Return the commands for the tests of an exercise."""
        raise NotImplementedError

    async def warm(
        self, exercise: Exercise, installation: Installation, backend: SandboxBackend
    ) -> None:
        """Build the parts once that every run would otherwise build."""


def folder_of(settings: Settings, language: Language) -> Path:
    """Return the folder of a language's downloaded files; sandboxes can read it."""
    return settings.bench_dir / "toolchains" / language


def find_program(settings: Settings, program: str) -> Path | None:
    """Return the path of a program in the sandboxes' search path."""
    found = shutil.which(program, path=os.pathsep.join(settings.sandbox.search_path))
    return Path(found) if found else None


def with_variables(variables: Mapping[str, str], command: str) -> str:
    """Put variables in front of a command."""
    said = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f"{said} {command}"


def in_folder(folder: PurePosixPath, command: str) -> str:
    """Return a command for the workspace root that runs in one of its folders."""
    return f"cd {shlex.quote(str(folder))} && {command}" if folder.parts else command


def package(what: str, *names: str) -> Missing:
    """Describe a requirement that Debian packages provide."""
    return Missing(what=what, fix=f"apt-get install {' '.join(names)}", packages=names)


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
