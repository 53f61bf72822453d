"""The environment of a project's sandboxes: detected once, pinned, and the same after a resume."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from anyio import to_thread
from pydantic import TypeAdapter

from assay.contracts.distribution import how_to_install, missing_extras
from assay.contracts.errors import PackageError, UsageError
from assay.contracts.execution import EditableProject, SandboxSpec
from assay.sandbox.factory import resolve_packages
from assay.settings.load import SandboxSettings
from assay.text.formatting import count
from assay.wiring import pin_environment, pin_packages

AUTO: Final = "auto"
OFF: Final = "off"
_EXTRA: Final = "packages"
_MOST_BUILDS: Final = 20
_T = TypeVar("_T")
_PROJECT: Final = TypeAdapter(EditableProject)
_UNSUPPORTED: Final = frozenset({"e2b"})
"""Backends that cannot add packages to a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectEnvironment:
    """Settings with pinned packages, and the project that programs see as installed."""

    sandbox: SandboxSettings
    project: EditableProject | None = None
    files: tuple[str, ...] = ()
    """The files that declared the packages."""

    @property
    def equipment(self) -> SandboxSpec:
        return SandboxSpec(
            packages=self.sandbox.packages, hosts=self.sandbox.hosts, project=self.project
        )

    def to_json(self) -> dict[str, Any]:
        """Return what a journal stores."""
        project = None
        if self.project is not None:
            project = _PROJECT.dump_python(self.project, mode="json")
        pins = list(self.sandbox.packages)
        return {"pins": pins, "project": project, "files": list(self.files)}


def environment_from_json(
    sandbox: SandboxSettings, stored: Mapping[str, Any]
) -> ProjectEnvironment:
    """Return a stored environment."""
    project = stored.get("project")
    return stored_environment(
        sandbox,
        tuple(stored["pins"]),
        None if project is None else _PROJECT.validate_python(project),
        files=tuple(stored.get("files", ())),
    )


def stored_environment(
    sandbox: SandboxSettings,
    pins: tuple[str, ...],
    project: EditableProject | None,
    *,
    files: tuple[str, ...] = (),
) -> ProjectEnvironment:
    """Return an environment whose packages are known already."""
    update: dict[str, Any] = {"packages": pins}
    if project is not None or any("--hash=" in pin for pin in pins):
        update["preload"] = ()
    return ProjectEnvironment(
        sandbox=sandbox.model_copy(update=update), project=project, files=files
    )


def generated_files(env: str, folder: Path) -> tuple[PurePosixPath, ...]:
    """Return version modules that git ignores and without which the project cannot be imported."""
    if env != AUTO or missing_extras([_EXTRA]):
        return ()
    from assay.environment import metadata
    from assay.environment.project_files import ProjectFiles

    return tuple(map(PurePosixPath, metadata.generated_files(ProjectFiles(folder))))


async def prepare_environment(
    sandbox: SandboxSettings,
    env: str,
    folder: Path | None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> ProjectEnvironment:
    """Detect what the project in a folder declares, and install it once.

    Raises:
        UsageError: If `env` has no valid form.
        PackageError: If a package cannot be installed.
        MissingExtraError: If the project declares packages, and uv is not installed.
    """
    if env not in {AUTO, OFF}:
        raise UsageError(f"not an environment: {env!r}", hint="use auto or off")
    if env == OFF or folder is None:
        return ProjectEnvironment(sandbox=await pin_packages(sandbox))
    if sandbox.backend in _UNSUPPORTED:
        on_notice(f"the backend {sandbox.backend} cannot install the project's packages")
        return ProjectEnvironment(sandbox=await pin_packages(sandbox))
    if missing_extras([_EXTRA]):
        on_notice(f"the project's packages are not installed: {how_to_install(_EXTRA)}")
        return ProjectEnvironment(sandbox=await pin_packages(sandbox))
    # Imported late: the parsers belong to an extra.
    from assay.environment.detect import detect_environment
    from assay.environment.project_files import ProjectFiles

    declared = await to_thread.run_sync(detect_environment, ProjectFiles(folder))
    if declared.empty:
        return ProjectEnvironment(sandbox=await pin_packages(sandbox))
    if declared.requirements:
        number = count(len(declared.requirements), "package")
        on_notice(f"preparing {number} of {', '.join(declared.files[:3])}")
    try:
        pinned = await _build_as_needed(
            sandbox,
            declared.requirements,
            partial(pin_environment, sandbox, declared),
            on_notice,
        )
    except PackageError as error:
        raise PackageError(
            f"the project's packages cannot be installed: {error}",
            index_unreachable=error.index_unreachable,
            hint="; ".join(
                filter(None, (error.hint, "`--env off` runs without the project's packages"))
            ),
        ) from error
    return ProjectEnvironment(sandbox=pinned, project=declared.project, files=declared.files)


async def install_environment(environment: ProjectEnvironment) -> None:
    """Install a stored environment, which may come from another machine.

    Raises:
        PackageError: If a package cannot be installed.
        MissingExtraError: If uv is needed and not installed.
    """
    sandbox = environment.sandbox
    if any("--hash=" in pin for pin in sandbox.packages):
        install = partial(resolve_packages, sandbox, project=environment.project, hashes=True)
        await _build_as_needed(sandbox, sandbox.packages, install, lambda _: None)


async def _build_as_needed(
    sandbox: SandboxSettings,
    requirements: tuple[str, ...],
    install: Callable[[], Awaitable[_T]],
    on_notice: Callable[[str], None],
) -> _T:
    """Install packages; build those without a wheel from source, each one once."""
    from assay.sandbox.packages.requirements import parse_requirement, parse_requirements
    from assay.sandbox.packages.resolver import NoWheelError

    known = {one.name: one for one in parse_requirements(requirements)}
    built: set[str] = set()
    while True:
        try:
            return await install()
        except NoWheelError as error:
            name = next((one for one in error.names if one not in built), "")
            if not name or len(built) >= _MOST_BUILDS:
                raise
            built.add(name)
            from assay.runs.source_builds import build_from_source

            requirement = known.get(name) or parse_requirement(name)
            await build_from_source(sandbox, requirement, on_notice)
