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
from assay.runs.mounted_environment import find_site_packages, installed_packages
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
    mounted: tuple[str, ...] = ()
    """The packages of a mounted virtual environment, `name==version sha256:…`."""

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
        stored = {"pins": pins, "project": project, "files": list(self.files)}
        if site := self.sandbox.site_packages:
            stored |= {"site_packages": str(site), "mounted": list(self.mounted)}
        return stored


def environment_from_json(
    sandbox: SandboxSettings, stored: Mapping[str, Any]
) -> ProjectEnvironment:
    """Return a stored environment.

    Raises:
        UsageError: If its virtual environment was changed since.
    """
    if site := stored.get("site_packages"):
        sandbox = sandbox.model_copy(update={"site_packages": Path(site)})
        _check_unchanged(Path(site), tuple(stored["mounted"]))
    project = stored.get("project")
    return stored_environment(
        sandbox,
        tuple(stored["pins"]),
        None if project is None else _PROJECT.validate_python(project),
        files=tuple(stored.get("files", ())),
        mounted=tuple(stored.get("mounted", ())),
    )


def _check_unchanged(site: Path, expected: tuple[str, ...]) -> None:
    different = set(expected) ^ set(installed_packages(site))
    if different:
        name = min(different).partition(" ")[0]
        raise UsageError(
            f"the virtual environment of {str(site)!r} differs from that of the run: {name}",
            hint="install the same packages, or start another run",
        )


def stored_environment(
    sandbox: SandboxSettings,
    pins: tuple[str, ...],
    project: EditableProject | None,
    *,
    files: tuple[str, ...] = (),
    mounted: tuple[str, ...] = (),
) -> ProjectEnvironment:
    """Return an environment whose packages are known already."""
    update: dict[str, Any] = {"packages": pins}
    if project is not None or any("--hash=" in pin for pin in pins):
        update["preload"] = ()
    return ProjectEnvironment(
        sandbox=sandbox.model_copy(update=update), project=project, files=files, mounted=mounted
    )


def mounted_again(sandbox: SandboxSettings, env: str, expected: tuple[str, ...]) -> SandboxSettings:
    """Return the settings with the virtual environment of a certificate, named again by the user.

    Raises:
        UsageError: If it is not named, or has other packages than then.
    """
    if env in {AUTO, OFF}:
        raise UsageError(
            "the certificate is about a run with a mounted virtual environment",
            hint="name one with the same packages: --env PATH",
        )
    site = find_site_packages(env, sandbox)
    _check_unchanged(site, expected)
    return sandbox.model_copy(update={"site_packages": site, "preload": ()})


def generated_files(env: str, folder: Path) -> tuple[PurePosixPath, ...]:
    """Return version modules that git ignores and without which the project cannot be imported."""
    if env == OFF or missing_extras([_EXTRA]):
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
        UsageError: If `env` is a path without a usable virtual environment.
        PackageError: If a package cannot be installed.
        MissingExtraError: If the project declares packages, and uv is not installed.
    """
    if env not in {AUTO, OFF}:
        return await _mount(sandbox, env, folder)
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


async def _mount(sandbox: SandboxSettings, env: str, folder: Path | None) -> ProjectEnvironment:
    site = await to_thread.run_sync(find_site_packages, env, sandbox)
    project = None
    if folder is not None and not missing_extras([_EXTRA]):
        from assay.environment.detect import editable_project
        from assay.environment.project_files import ProjectFiles

        project = await to_thread.run_sync(editable_project, ProjectFiles(folder))
    update = {"site_packages": site, "preload": ()}
    return ProjectEnvironment(
        sandbox=await pin_packages(sandbox.model_copy(update=update)),
        project=project,
        files=(env,),
        mounted=await to_thread.run_sync(installed_packages, site),
    )


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
