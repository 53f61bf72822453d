"""All toolchains by language, and their state on this machine.

Python is here because pytest comes with Assay itself. The survey checks in a sandbox for which
languages tests can run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from assay.bench.exercise import Exercise, Language
from assay.bench.toolchains.cpp import CppToolchain
from assay.bench.toolchains.go import GoToolchain
from assay.bench.toolchains.java import JavaToolchain
from assay.bench.toolchains.javascript import JavaScriptToolchain
from assay.bench.toolchains.rust import RustToolchain
from assay.bench.toolchains.toolchain import (
    Commands,
    Installation,
    Missing,
    OnNotice,
    Toolchain,
    folder_of,
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


class PythonToolchain(Toolchain):
    """Python with the pytest of this installation."""

    language = "python"
    versions = (("python3", "--version"), ("pytest", "--version"))

    def find(self, settings: Settings) -> Installation:
        fix = install_command("agent")
        missing = () if find_spec("pytest") else (Missing(what="pytest", fix=fix),)
        return Installation(
            language="python", folder=folder_of(settings, "python"), missing=missing
        )

    async def download(self, settings: Settings, folder: Path, on_notice: OnNotice) -> None:
        del settings, folder, on_notice
        raise MissingExtraError("running Python's tests", extra="agent")

    def commands(self, exercise: Exercise, installation: Installation) -> Commands:
        del installation
        return Commands(bare=_PYTEST, check=in_folder(exercise.folder, _PYTEST))


TOOLCHAINS: Final[Mapping[Language, Toolchain]] = {
    "python": PythonToolchain(),
    "javascript": JavaScriptToolchain(),
    "go": GoToolchain(),
    "rust": RustToolchain(),
    "cpp": CppToolchain(),
    "java": JavaToolchain(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchains:
    """The toolchains of some languages on this machine."""

    found: Mapping[Language, Installation]

    def why_not(self, exercise: Exercise) -> str:
        """Return why an exercise cannot run here; empty if it can."""
        installation = self.found[exercise.language]
        if not installation.ready:
            return installation.missing_text
        return TOOLCHAINS[exercise.language].lacks(exercise, installation)

    def commands(self, exercise: Exercise) -> Commands:
        """Return the commands for the tests of an exercise."""
        if exercise.command:
            check = in_folder(exercise.folder, exercise.command)
            return Commands(bare=exercise.command, check=check)
        language = exercise.language
        return TOOLCHAINS[language].commands(exercise, self.found[language])

    async def warm(self, exercise: Exercise, backend: SandboxBackend) -> None:
        """Build the parts once that every run of this exercise would otherwise build."""
        language = exercise.language
        await TOOLCHAINS[language].warm(exercise, self.found[language], backend)

    def sandbox_settings(self, settings: SandboxSettings) -> SandboxSettings:
        """Return the settings of a sandbox with these languages."""
        ready = [one for one in self.found.values() if one.ready]
        read_only = (path for one in ready for path in one.read_only)
        search_path = (folder for one in ready for folder in one.search_path)
        return settings.model_copy(
            update={
                "read_only": (*settings.read_only, *read_only),
                "search_path": (*search_path, *settings.search_path),
                # Tests are separate processes, and preloading does not help them.
                "preload": (),
            }
        )


def find_toolchains(settings: Settings, languages: Iterable[Language]) -> Toolchains:
    """Find the toolchains of these languages.

    Files in a folder that sandboxes replace with their own count as missing.
    """
    found: dict[Language, Installation] = {}
    for language in dict.fromkeys(languages):
        one = TOOLCHAINS[language].find(settings)
        parts = (*one.read_only, *map(Path, one.search_path))
        hidden = [top for top in OWN_FOLDERS if any(part.is_relative_to(top) for part in parts)]
        if hidden:
            missing = Missing(
                what=f"its parts: {str(one.folder)!r} is below {hidden[0]}, "
                "and sandboxes have their own",
                fix=f"set models.cache_dir or XDG_CACHE_HOME to a folder outside {hidden[0]}",
            )
            one = replace(one, missing=(missing,), read_only=(), search_path=())
        found[language] = one
    return Toolchains(found=found)


async def versions_of(backend: SandboxBackend, toolchains: Toolchains) -> dict[Language, str]:
    """Return the installed versions of each ready language, as a sandbox sees them."""
    found: dict[Language, str] = {}
    async with backend.open_sandbox(Limits(memory_mb=2048, processes=256)) as sandbox:
        for language, installation in toolchains.found.items():
            lines: list[str] = []
            for argv in TOOLCHAINS[language].versions if installation.ready else ():
                result = await sandbox.run(Command(argv=argv))
                printed = (result.stdout or result.stderr).strip().splitlines()
                lines.append(printed[0].strip() if printed else f"{argv[0]}: nothing")
            found[language] = ", ".join(lines)
    return found


async def survey(
    settings: Settings, languages: Iterable[Language], *, install: bool, on_notice: OnNotice
) -> tuple[Installation, ...]:
    """Find toolchains, install missing ones on request, and query versions.

    An installation error is reported with its language; the other languages are still installed.

    Raises:
        AssayError: If no sandbox can be opened.
    """
    wanted = tuple(languages)
    problems: dict[Language, str] = {}
    for language in wanted if install else ():
        try:
            await TOOLCHAINS[language].install(settings, on_notice)
        except (AssayError, OSError) as error:
            hint = error.hint if isinstance(error, AssayError) else ""
            problems[language] = "; ".join(filter(None, (str(error), hint)))
    toolchains = find_toolchains(settings, wanted)
    async with open_backend(toolchains.sandbox_settings(settings.sandbox)) as backend:
        versions = await versions_of(backend, toolchains)
    return tuple(
        replace(one, version=versions[language], problem=problems.get(language, ""))
        for language, one in toolchains.found.items()
    )
