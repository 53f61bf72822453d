"""Metadata of the project itself, from `pyproject.toml` and `setup.cfg`; nothing is executed."""

import configparser
import re
from collections.abc import Iterable
from email.parser import HeaderParser
from typing import Any, Final

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from assay.contracts.errors import PackageError
from assay.environment.declared import ProjectMetadata
from assay.environment.project_files import ENV_OFF, ProjectFiles, strings, table, tables
from assay.environment.requirements_files import RequirementsFile, read_requirements_file
from assay.environment.setup_script import read_setup_script

_UNKNOWN_VERSION: Final = "0.0.0"
_VERSION_LINE: Final = re.compile(
    r"""^(?:__version__|VERSION|version)\s*(?::\s*\w+\s*)?=\s*["']([^"'\n]+)["']""", re.MULTILINE
)
_CARET: Final = re.compile(r"([\^~])\s*(\d+(?:\.\d+)*)(\S*)")


def read_metadata(files: ProjectFiles) -> ProjectMetadata:
    """Return the metadata that the files of the project state.

    Raises:
        PackageError: If a file cannot be used.
    """
    metadata = ProjectMetadata()
    pyproject = files.read_toml("pyproject.toml")
    if pyproject is not None:
        _read_project_table(files, pyproject, metadata)
        _read_groups(pyproject, metadata)
        _read_poetry(table(pyproject, "tool", "poetry"), metadata)
        _read_pdm(table(pyproject, "tool", "pdm"), metadata)
        dynamic = strings(table(pyproject, "project").get("dynamic"))
        if metadata.name or metadata.groups:
            metadata.files.append("pyproject.toml")
    else:
        dynamic = []
    older = ProjectMetadata()
    _read_setup_cfg(files, older)
    read_setup_script(files, older)
    _merge(metadata, older, dynamic, static=bool(table(pyproject or {}, "project").get("name")))
    if metadata.name:
        metadata.version = _version(files, metadata.version, pyproject or {})
        _read_build_metadata(files, metadata)
        metadata.folders = _import_folders(files, metadata, pyproject or {})
    return metadata


def _merge(
    metadata: ProjectMetadata, older: ProjectMetadata, dynamic: list[str], *, static: bool
) -> None:
    """Add what only `setup.cfg` or `setup.py` states: everything, or the dynamic fields."""
    metadata.groups = {**older.groups, **metadata.groups}
    metadata.folders += older.folders
    if static:
        if "dependencies" in dynamic and not metadata.requires:
            metadata.requires = older.requires
        if "optional-dependencies" in dynamic and not metadata.extras:
            metadata.extras = older.extras
        if "version" in dynamic and not metadata.version:
            metadata.version = older.version
        if {"entry-points", "scripts"} & set(dynamic):
            metadata.entry_points = {**older.entry_points, **metadata.entry_points}
        return
    metadata.name = metadata.name or older.name
    metadata.version = metadata.version or older.version
    metadata.requires = metadata.requires or older.requires
    metadata.extras = {**older.extras, **metadata.extras}
    metadata.entry_points = {**older.entry_points, **metadata.entry_points}
    metadata.unread = older.unread
    metadata.files += older.files


def _read_project_table(
    files: ProjectFiles, pyproject: dict[str, Any], metadata: ProjectMetadata
) -> None:
    project = table(pyproject, "project")
    name, version = project.get("name"), project.get("version")
    metadata.name = name if isinstance(name, str) else ""
    metadata.version = version if isinstance(version, str) else ""
    metadata.requires = strings(project.get("dependencies"))
    for extra, listed in table(project, "optional-dependencies").items():
        metadata.extras[canonicalize_name(extra)] = strings(listed)
    for section, entries in (
        ("console_scripts", table(project, "scripts")),
        ("gui_scripts", table(project, "gui-scripts")),
        *table(project, "entry-points").items(),
    ):
        _add_entry_points(metadata, section, table(entries))
    dynamic = table(pyproject, "tool", "setuptools", "dynamic")
    if named := _file_names(dynamic.get("dependencies")):
        metadata.requires = _requirements_of(files, named, metadata)
    for extra, value in table(dynamic, "optional-dependencies").items():
        if named := _file_names(value):
            metadata.extras[canonicalize_name(extra)] = _requirements_of(files, named, metadata)


def _add_entry_points(metadata: ProjectMetadata, section: str, entries: dict[str, Any]) -> None:
    kept = {name: value for name, value in entries.items() if isinstance(value, str)}
    if kept:
        metadata.entry_points.setdefault(section, {}).update(kept)


def _file_names(value: object) -> list[str]:
    named = table(value).get("file")
    return [named] if isinstance(named, str) else strings(named)


def _requirements_of(
    files: ProjectFiles, names: Iterable[str], metadata: ProjectMetadata
) -> list[str]:
    read = RequirementsFile()
    for name in names:
        read_requirements_file(files, name, read)
    metadata.files += read.files
    return [text.partition(" --hash")[0] for text in read.requirements]


def _read_groups(pyproject: dict[str, Any], metadata: ProjectMetadata) -> None:
    """Read dependency groups (PEP 735); a group may include others."""
    groups: dict[str, Any] = {}
    for name, value in table(pyproject, "dependency-groups").items():
        groups[canonicalize_name(name)] = value
    for name in groups:
        metadata.groups[name] = _group(groups, name, ())


def _group(groups: dict[str, Any], name: str, above: tuple[str, ...]) -> list[str]:
    if name in above or not isinstance(groups.get(name), list):
        raise PackageError(
            f"pyproject.toml: the dependency group {name!r} includes itself or does not exist",
            hint=ENV_OFF,
        )
    found = strings(groups[name])
    for entry in tables(groups[name]):
        included = entry.get("include-group")
        if isinstance(included, str):
            found += _group(groups, canonicalize_name(included), (*above, name))
    return found


def _read_poetry(poetry: dict[str, Any], metadata: ProjectMetadata) -> None:
    if not poetry:
        return
    for name in ("name", "version"):
        value = poetry.get(name)
        if isinstance(value, str) and not getattr(metadata, name):
            setattr(metadata, name, value)
    listed = table(poetry, "dependencies")
    if not metadata.requires:
        metadata.requires = poetry_requirements(listed)
    for extra, names in table(poetry, "extras").items():
        chosen = {key: listed[key] for key in strings(names) if key in listed}
        found = poetry_requirements(chosen, optional=True)
        metadata.extras.setdefault(canonicalize_name(extra), found)
    groups = {"dev": table(poetry, "dev-dependencies")} if "dev-dependencies" in poetry else {}
    for name, group in table(poetry, "group").items():
        groups[name] = {**groups.get(name, {}), **table(group, "dependencies")}
    for name, entries in groups.items():
        found = metadata.groups.get(canonicalize_name(name), [])
        metadata.groups[canonicalize_name(name)] = found + poetry_requirements(entries)
    _add_entry_points(metadata, "console_scripts", table(poetry, "scripts"))
    for section, entries in table(poetry, "plugins").items():
        _add_entry_points(metadata, section, table(entries))
    for package in tables(poetry.get("packages")):
        if isinstance(package.get("from"), str):
            metadata.folders.append(package["from"])


def poetry_requirements(entries: dict[str, Any], *, optional: bool = False) -> list[str]:
    """Return the entries of a table of poetry as requirements (PEP 508)."""
    found: list[str] = []
    for name, value in entries.items():
        if name.lower() == "python":
            continue
        choices = tables(value) or [table(value) or {"version": value}]
        for choice in choices:
            if choice.get("optional") and not optional:
                continue
            if not isinstance(choice.get("version", "*"), str):
                continue
            if {"git", "path", "url", "file"} & choice.keys():
                raise PackageError(
                    f"pyproject.toml: {name!r} comes from a URL or a folder, and Assay installs "
                    "from the package index only",
                    hint=ENV_OFF,
                )
            extras = ",".join(strings(choice.get("extras")))
            marker = choice.get("markers")
            found.append(
                f"{name}{f'[{extras}]' if extras else ''}{_specifier(choice.get('version', '*'))}"
                + (f" ; {marker}" if isinstance(marker, str) else "")
            )
    return found


def _specifier(text: str) -> str:
    """Translate versions as poetry writes them: `^1.2`, `~1.2`, `1.2.*`, `>=1,<2`."""
    if "|" in text:
        return ""  # alternatives; the resolver then takes the newest version
    clauses: list[str] = []
    for clause in (part.strip() for part in text.split(",")):
        caret = _CARET.fullmatch(clause)
        if clause in {"", "*"}:
            continue
        if caret and not clause.startswith("~="):
            clauses.append(f">={caret[2]}{caret[3]},<{_next(caret[1], caret[2])}")
        else:
            clauses.append(clause if clause[0] in "<>=!~" else f"=={clause}")
    return ",".join(clauses)


def _next(kind: str, version: str) -> str:
    parts = [int(part) for part in version.split(".")]
    if kind == "~":
        at = min(1, len(parts) - 1)
    else:
        at = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
    return ".".join(map(str, [*parts[:at], parts[at] + 1]))


def _read_pdm(pdm: dict[str, Any], metadata: ProjectMetadata) -> None:
    for name, listed in table(pdm, "dev-dependencies").items():
        metadata.groups.setdefault(canonicalize_name(name), []).extend(strings(listed))


def _read_setup_cfg(files: ProjectFiles, metadata: ProjectMetadata) -> None:
    text = files.read_text("setup.cfg")
    if text is None:
        return
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - the documented way to keep upper case
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise PackageError(f"setup.cfg is not valid: {error}", hint=ENV_OFF) from error
    metadata.name = parser.get("metadata", "name", fallback="")
    version = parser.get("metadata", "version", fallback="")
    metadata.version = "" if version.startswith(("attr:", "file:")) else version
    options = parser.get("options", "install_requires", fallback="")
    if options.startswith("file:"):
        names = [name.strip() for name in options.removeprefix("file:").split(",")]
        metadata.requires = _requirements_of(files, names, metadata)
    else:
        metadata.requires = _lines(options)
    tests = parser.get("options", "tests_require", fallback="")
    if _lines(tests):
        metadata.groups["test"] = _lines(tests)
    if parser.has_section("options.extras_require"):
        for extra, value in parser.items("options.extras_require"):
            metadata.extras[canonicalize_name(extra)] = _lines(value)
    if parser.has_section("options.entry_points"):
        for section, value in parser.items("options.entry_points"):
            pairs = (line.partition("=") for line in _lines(value))
            entries = {name.strip(): place.strip() for name, _, place in pairs}
            _add_entry_points(metadata, section, entries)
    for line in _lines(parser.get("options", "package_dir", fallback="")):
        package, _, folder = line.partition("=")
        if not package.strip() and folder.strip():
            metadata.folders.append(folder.strip())
    if metadata.name:
        metadata.files.append("setup.cfg")


def _lines(text: str) -> list[str]:
    lines = (line.strip() for line in re.split(r"\n|(?<=\S);(?=\s*$)", text))
    return [line for line in lines if line and not line.startswith("#")]


def _version(files: ProjectFiles, stated: str, pyproject: dict[str, Any]) -> str:
    """Return a valid version: as stated, as of the built metadata, or as of a source file."""
    candidates = [stated, _package_info(files).get("Version", "")]
    attribute = table(pyproject, "tool", "setuptools", "dynamic", "version").get("attr")
    path = table(pyproject, "tool", "hatch", "version").get("path")
    named = [path] if isinstance(path, str) else []
    if isinstance(attribute, str):
        module = attribute.rpartition(".")[0].replace(".", "/")
        named += [
            f"{folder}{module}{end}" for folder in ("", "src/") for end in ("/__init__.py", ".py")
        ]
    for name in named:
        found = _VERSION_LINE.search(files.read_text(name) or "")
        candidates.append(found[1] if found else "")
    for candidate in candidates:
        try:
            return str(Version(candidate))
        except InvalidVersion:
            continue
    return _UNKNOWN_VERSION


def _package_info(files: ProjectFiles) -> dict[str, str]:
    """Return the single headers of `PKG-INFO`, which source distributions contain."""
    message = HeaderParser().parsestr(files.read_text("PKG-INFO") or "")
    return {name: str(value) for name, value in message.items()}


def _read_build_metadata(files: ProjectFiles, metadata: ProjectMetadata) -> None:
    """Use `PKG-INFO` for requirements that a program computes."""
    text = files.read_text("PKG-INFO")
    if not text or not metadata.unread:
        return
    message = HeaderParser().parsestr(text)
    listed = [str(value) for value in message.get_all("Requires-Dist") or ()]
    plain = [value for value in listed if "extra ==" not in value]
    if listed:
        metadata.requires = plain
        metadata.unread = []
        metadata.files.append("PKG-INFO")


def _import_folders(
    files: ProjectFiles, metadata: ProjectMetadata, pyproject: dict[str, Any]
) -> list[str]:
    """Return the folders that an editable install would add to the import path."""
    tool = table(pyproject, "tool")
    found = [*metadata.folders]
    root = table(tool, "setuptools", "package-dir").get("")
    found += [root] if isinstance(root, str) else []
    found += strings(table(tool, "setuptools", "packages", "find").get("where"))
    wheel = table(tool, "hatch", "build", "targets", "wheel")
    found += [name.rpartition("/")[0] for name in strings(wheel.get("packages"))]
    found += strings(wheel.get("dev-mode-dirs"))
    if files.has_folder("src") and not files.read_bytes("src/__init__.py"):
        found.append("src")
    kept = dict.fromkeys(name.strip("./") for name in (*found, ""))
    return [name for name in kept if ".." not in name.split("/") and files.has_folder(name)]


def generated_files(files: ProjectFiles) -> tuple[str, ...]:
    """Return the version modules that a build writes into the source tree and git ignores.

    Raises:
        PackageError: If `pyproject.toml` cannot be used.
    """
    tool = table(files.read_toml("pyproject.toml") or {}, "tool")
    named = (
        table(tool, "setuptools_scm").get("version_file"),
        table(tool, "setuptools_scm").get("write_to"),
        table(tool, "hatch", "build", "hooks", "vcs").get("version-file"),
        table(tool, "pdm", "version").get("write_to"),
    )
    modules = (name for name in named if isinstance(name, str) and name.endswith(".py"))
    return tuple(name for name in modules if files.read_bytes(name) is not None)
