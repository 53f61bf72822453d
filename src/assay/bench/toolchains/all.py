"""All toolchains by language, and their state on this machine.

Python is here because pytest comes with Assay itself. The survey checks in a sandbox for which
languages tests can run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from assay.bench.exercise import Exercise, Language
from assay.bench.toolchains.cpp import CppToolchain
from assay.bench.toolchains.go import GoToolchain
from assay.bench.toolchains.java import JavaToolchain
from assay.bench.toolchains.javascript import JavaScriptToolchain
from assay.bench.toolchains.rust import RustToolchain
from assay.bench.toolchains.toolchain import (
    Commands,
    Kit,
    Missing,
    OnNotice,
    Place,
    Toolchain,
    in_folder,
)
from assay.contracts.distribution import install_command
from assay.contracts.errors import AssayError, MissingExtraError
from assay.contracts.execution import Command, Limits
from assay.contracts.ports import SandboxBackend
from assay.sandbox.native.host.visible_paths import OWN_FOLDERS
from assay.settings.load import SandboxSettings, Settings
from assay.wiring import open_backend

_PYTEST: Final = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 pytest -p no:cacheprovider"
"""Plain pytest: plugins of this installation would take time, and may reorder tests."""


class PythonToolchain:
    """See `assay.bench.toolchains.toolchain.Toolchain`."""

    language: Language = "python"
    versions: tuple[tuple[str, ...], ...] = (("python3", "--version"), ("pytest", "--version"))

    def find(self, place: Place) -> Kit:
        missing = (
            () if find_spec("pytest") else (Missing(what="pytest", fix=install_command("agent")),)
        )
        return Kit(language=self.language, folder=place.of(self.language), missing=missing)

    async def install(self, place: Place, on_notice: OnNotice) -> None:
        del on_notice
        if not self.find(place).ready:
            raise MissingExtraError("running Python's tests", extra="agent")

    def lacks(self, exercise: Exercise, kit: Kit) -> str:
        del exercise, kit
        return ""

    def commands(self, exercise: Exercise, kit: Kit) -> Commands:
        del kit
        return Commands(bare=_PYTEST, check=in_folder(exercise.folder, _PYTEST))

    async def warm(self, exercise: Exercise, kit: Kit, backend: SandboxBackend) -> None:
        del exercise, kit, backend


TOOLCHAINS: Final[Mapping[Language, Toolchain]] = {
    toolchain.language: toolchain
    for toolchain in (
        PythonToolchain(),
        JavaScriptToolchain(),
        GoToolchain(),
        RustToolchain(),
        CppToolchain(),
        JavaToolchain(),
    )
}


def place_of(settings: Settings) -> Place:
    """Return where toolchain files are searched and stored."""
    return Place(
        cache_dir=settings.bench_dir,
        search_path=settings.sandbox.search_path,
        pip_environment=settings.models.pip_environment,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchains:
    """The toolchains of each language."""

    found: Mapping[Language, Kit]

    def why_not(self, exercise: Exercise) -> str:
        """Return why an exercise cannot run here; empty if it can."""
        kit = self.found.get(exercise.language)
        if kit is None:
            return f"nothing is known about running {exercise.language}"
        if kit.missing:
            return f"missing: {', '.join(one.what for one in kit.missing)}"
        return TOOLCHAINS[exercise.language].lacks(exercise, kit)

    def commands(self, exercise: Exercise) -> Commands:
        """Return the commands for the tests of an exercise."""
        if exercise.command:
            check = in_folder(exercise.folder, exercise.command)
            return Commands(bare=exercise.command, check=check)
        language = exercise.language
        return TOOLCHAINS[language].commands(exercise, self.found[language])

    def sandbox_settings(self, settings: SandboxSettings) -> SandboxSettings:
        """Return the settings of a sandbox with these languages."""
        ready = [kit for kit in self.found.values() if kit.ready]
        first = [folder for kit in ready for folder in kit.search_path]
        return settings.model_copy(
            update={
                "read_only": (
                    *settings.read_only,
                    *(path for kit in ready for path in kit.read_only),
                ),
                "search_path": (*first, *settings.search_path),
                # Tests are separate processes, and preloading does not help them.
                "preload": (),
            }
        )


def find_kits(place: Place, languages: Iterable[Language]) -> Toolchains:
    """Find the toolchains of these languages."""
    return Toolchains(
        found={
            language: _in_sight(TOOLCHAINS[language].find(place))
            for language in dict.fromkeys(languages)
            if language in TOOLCHAINS
        }
    )


def _in_sight(kit: Kit) -> Kit:
    """Return the toolchain; as missing if its files are in a folder that sandboxes replace."""
    parts = (*kit.read_only, *map(Path, kit.search_path))
    hidden = [folder for folder in OWN_FOLDERS if any(one.is_relative_to(folder) for one in parts)]
    if not hidden:
        return kit
    missing = Missing(
        what=f"its parts: {str(kit.folder)!r} is below {hidden[0]}, and sandboxes have their own",
        fix=f"set models.cache_dir or XDG_CACHE_HOME to a folder outside {hidden[0]}",
    )
    return replace(kit, missing=(missing,), read_only=(), search_path=())


async def versions_of(backend: SandboxBackend, kits: Toolchains) -> dict[Language, str]:
    """Return the installed versions of each ready language, as a sandbox sees them."""
    found: dict[Language, str] = {}
    async with backend.open_sandbox(Limits(memory_mb=2048, processes=256)) as sandbox:
        for language, kit in kits.found.items():
            lines: list[str] = []
            for argv in TOOLCHAINS[language].versions if kit.ready else ():
                result = await sandbox.run(Command(argv=argv))
                said = (result.stdout or result.stderr).strip().splitlines()
                lines.append(said[0].strip() if said else f"{argv[0]}: nothing")
            found[language] = ", ".join(lines)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One language."""

    language: Language
    kit: Kit
    version: str
    problem: str = ""
    """Why the installation failed; empty if it succeeded or was not tried."""

    @property
    def ready(self) -> bool:
        return self.kit.ready

    @property
    def words(self) -> str:
        if self.ready:
            return f"ready    {self.version}"
        return f"not run  missing: {', '.join(one.what for one in self.kit.missing)}"

    @property
    def fixes(self) -> tuple[str, ...]:
        tried = (f"not installed: {self.problem}",) if self.problem else ()
        fixes = (one.fix for one in self.kit.missing)
        return tuple(dict.fromkeys(f"         {line}" for line in (*tried, *fixes)))

    def fields(self) -> dict[str, Any]:
        """Return all values for JSON output."""
        missing = [{"what": one.what, "fix": one.fix} for one in self.kit.missing]
        return {
            "ready": self.ready,
            "version": self.version,
            "missing": missing,
            "problem": self.problem,
        }


async def survey(
    settings: Settings, languages: Iterable[Language], *, install: bool, on_notice: OnNotice
) -> tuple[Found, ...]:
    """Find toolchains, install missing ones on request, and query versions.

    An installation error is reported with its language; the other languages are still installed.

    Raises:
        AssayError: If no sandbox can be opened.
    """
    place = place_of(settings)
    wanted = tuple(languages)
    problems: dict[Language, str] = {}
    for language in wanted if install else ():
        if not TOOLCHAINS[language].find(place).ready:
            try:
                await TOOLCHAINS[language].install(place, on_notice)
            except (AssayError, OSError) as error:
                hint = error.hint if isinstance(error, AssayError) else ""
                problems[language] = "; ".join(filter(None, (str(error), hint)))
    kits = find_kits(place, wanted)
    async with open_backend(kits.sandbox_settings(settings.sandbox)) as backend:
        versions = await versions_of(backend, kits)
    return tuple(
        Found(
            language=language,
            kit=kit,
            version=versions.get(language, ""),
            problem=problems.get(language, ""),
        )
        for language, kit in kits.found.items()
    )
