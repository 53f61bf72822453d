"""Lock files of uv, poetry and PDM: exact versions with hashes, for this interpreter."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from assay.contracts.errors import PackageError
from assay.environment.declared import TEST_GROUPS, ProjectMetadata, applies, parse
from assay.environment.project_files import ENV_OFF, ProjectFiles, strings, table, tables

LOCKS: Final = ("uv.lock", "poetry.lock", "pdm.lock")
"""The lock files that Assay reads, the preferred first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dependency:
    name: str
    extras: tuple[str, ...] = ()
    version: str = ""


@dataclass(slots=True, kw_only=True)
class _Locked:
    """One package of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    local: bool = False
    """Whether it is a folder of the workspace, such as the project itself."""
    elsewhere: str = ""
    """The kind of source that is not a package index."""
    needs: list[_Dependency] = field(default_factory=list[_Dependency])
    extras: dict[str, list[_Dependency]] = field(default_factory=dict[str, list[_Dependency]])


def read_lock(files: ProjectFiles, name: str, metadata: ProjectMetadata) -> tuple[str, ...]:
    """Return the pins of a lock that the project needs here, with hashes.

    Raises:
        PackageError: If the lock cannot be used.
    """
    lock = files.read_toml(name) or {}
    if name == "uv.lock":
        chosen = _read_uv(lock, metadata)
    elif name == "poetry.lock":
        chosen = _read_poetry(lock, metadata)
    else:
        chosen = _read_pdm(lock)
    return tuple(sorted(_pin(package, name) for package in chosen if not package.local))


def _pin(package: _Locked, source: str) -> str:
    if package.elsewhere:
        raise PackageError(
            f"{source}: {package.name!r} comes from {package.elsewhere}, and Assay installs from "
            "the package index only",
            hint=f"install it into a virtual environment and use `--env PATH`; {ENV_OFF}",
        )
    hashes = (f"--hash={one}" for one in package.hashes)
    return " ".join((f"{package.name}=={package.version}", *hashes))


def _holds(marker: object, source: str) -> bool:
    if not isinstance(marker, str) or not marker.strip():
        return True
    try:
        return Marker(marker).evaluate({"extra": ""})
    except (InvalidMarker, ValueError, RecursionError, KeyError) as error:
        raise PackageError(f"{source}: not a marker: {marker[:100]!r}", hint=ENV_OFF) from error


def _read_uv(lock: dict[str, Any], metadata: ProjectMetadata) -> list[_Locked]:
    source = "uv.lock"
    packages: dict[str, list[_Locked]] = {}
    roots: list[_Dependency] = []
    own = canonicalize_name(metadata.name) if metadata.name else ""
    for entry in tables(lock.get("package")):
        package = _uv_package(entry, source)
        packages.setdefault(package.name, []).append(package)
        origin = table(entry, "source")
        root = origin.get("editable", origin.get("virtual")) == "."
        if root or package.name == own:
            extras = tuple(name for name in package.extras if name in TEST_GROUPS)
            roots.append(_Dependency(name=package.name, extras=extras, version=package.version))
            for group, listed in table(entry, "dev-dependencies").items():
                if canonicalize_name(group) in TEST_GROUPS:
                    roots += _uv_dependencies(listed, source)
            package.local = True
    return _reachable(packages, roots, source)


def _uv_package(entry: dict[str, Any], source: str) -> _Locked:
    origin = table(entry, "source")
    kinds = {"git": "a git repository", "url": "a URL", "path": "a file"}
    files = [*tables(entry.get("wheels")), *([table(entry, "sdist")] if "sdist" in entry else [])]
    extras = table(entry, "optional-dependencies")
    return _Locked(
        name=canonicalize_name(str(entry.get("name", ""))),
        version=str(entry.get("version", "0")),
        hashes=_hashes(files),
        local=bool({"editable", "virtual", "directory"} & origin.keys()),
        elsewhere=next((said for kind, said in kinds.items() if kind in origin), ""),
        needs=_uv_dependencies(entry.get("dependencies"), source),
        extras={
            canonicalize_name(name): _uv_dependencies(listed, source)
            for name, listed in extras.items()
        },
    )


def _hashes(files: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    found = {str(file["hash"]) for file in files if isinstance(file.get("hash"), str)}
    return tuple(sorted(found))


def _uv_dependencies(listed: object, source: str) -> list[_Dependency]:
    return [
        _Dependency(
            name=canonicalize_name(str(entry.get("name", ""))),
            extras=tuple(map(canonicalize_name, strings(entry.get("extra")))),
            version=str(entry.get("version", "")),
        )
        for entry in tables(listed)
        if _holds(entry.get("marker"), source)
    ]


def _reachable(
    packages: dict[str, list[_Locked]], roots: Iterable[_Dependency], source: str
) -> list[_Locked]:
    """Return the packages that the roots need, directly or not."""
    found: dict[str, _Locked] = {}
    seen: set[tuple[str, str]] = set()
    waiting = deque(roots)
    while waiting:
        wanted = waiting.popleft()
        package = _choose(packages, wanted, source)
        for extra in ("", *wanted.extras):
            if (package.name, extra) not in seen:
                seen.add((package.name, extra))
                waiting += package.extras.get(extra, []) if extra else package.needs
        found[package.name] = package
    return list(found.values())


def _choose(packages: dict[str, list[_Locked]], wanted: _Dependency, source: str) -> _Locked:
    choices = packages.get(wanted.name, [])
    for package in choices:
        if not wanted.version or package.version == wanted.version:
            return package
    raise PackageError(f"{source} lacks {wanted.name!r}, which another package needs", hint=ENV_OFF)


def _read_poetry(lock: dict[str, Any], metadata: ProjectMetadata) -> list[_Locked]:
    """Select by groups if the lock lists them, otherwise from the project's requirements."""
    source = "poetry.lock"
    packages: dict[str, list[_Locked]] = {}
    for entry in tables(lock.get("package")):
        if _holds_for_groups(entry, source):
            package = _poetry_package(entry, table(lock, "metadata", "files"))
            packages.setdefault(package.name, []).append(package)
    texts = [*metadata.requires]
    for name in TEST_GROUPS:
        texts += [*metadata.groups.get(name, []), *metadata.extras.get(name, [])]
    roots: list[_Dependency] = []
    for text in metadata.expanded(texts, source="pyproject.toml"):
        requirement = parse(text, source="pyproject.toml")
        if applies(requirement, source="pyproject.toml"):
            extras = tuple(map(canonicalize_name, sorted(requirement.extras)))
            roots.append(_Dependency(name=canonicalize_name(requirement.name), extras=extras))
    return _reachable(packages, roots, source)


def _holds_for_groups(entry: dict[str, Any], source: str) -> bool:
    markers = entry.get("markers")
    if by_group := table(markers):
        texts = [one for one in by_group.values() if isinstance(one, str)]
        return not texts or any(_holds(one, source) for one in texts)
    return _holds(markers, source)


def _poetry_package(entry: dict[str, Any], older_files: dict[str, Any]) -> _Locked:
    name = str(entry.get("name", ""))
    kind = table(entry, "source").get("type", "")
    listed = tables(entry.get("files")) or tables(older_files.get(name))
    package = _Locked(
        name=canonicalize_name(name),
        version=str(entry.get("version", "0")),
        hashes=_hashes(listed),
        elsewhere="" if kind in {"", "legacy"} else f"a {kind}",
    )
    optional = {
        canonicalize_name(parse(text, source="poetry.lock").name): canonicalize_name(extra)
        for extra, texts in table(entry, "extras").items()
        for text in strings(texts)
    }
    for need, value in table(entry, "dependencies").items():
        for choice in tables(value) or [table(value)]:
            marker = choice.get("markers")
            text = marker if isinstance(marker, str) else ""
            extra = optional.get(canonicalize_name(need), "") if "extra ==" in text else ""
            dependency = _Dependency(
                name=canonicalize_name(need),
                extras=tuple(map(canonicalize_name, strings(choice.get("extras")))),
            )
            if extra or choice.get("optional"):
                package.extras.setdefault(extra, []).append(dependency)
            elif _holds(text, "poetry.lock"):
                package.needs.append(dependency)
    return package


def _read_pdm(lock: dict[str, Any]) -> Iterator[_Locked]:
    wanted = TEST_GROUPS | {"default"}
    seen: set[str] = set()
    older_files = table(lock, "metadata", "files")
    for entry in tables(lock.get("package")):
        name, version = canonicalize_name(str(entry.get("name", ""))), str(entry.get("version", ""))
        groups = set(map(canonicalize_name, strings(entry.get("groups"))))
        if groups and not groups & wanted:
            continue
        if name in seen or not _holds(entry.get("marker"), "pdm.lock"):
            continue
        seen.add(name)
        listed = tables(entry.get("files")) or tables(older_files.get(f"{name} {version}"))
        yield _Locked(
            name=name,
            version=version,
            hashes=_hashes(listed),
            local=entry.get("path") == ".",
            elsewhere="a URL" if {"git", "url", "path"} & entry.keys() else "",
        )
