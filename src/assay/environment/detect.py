"""Detection: which files of a project declare its packages, and what they declare.

A lock comes first. Without one, Assay combines the project's own metadata with its requirements
files; `tox.ini` counts only if nothing else names requirements of tests.
"""

import configparser
import re
from typing import Final

from packaging.utils import canonicalize_name

from assay.contracts.errors import PackageError
from assay.contracts.execution import EditableProject
from assay.environment.declared import (
    TEST_GROUPS,
    DeclaredEnvironment,
    ProjectMetadata,
    applicable,
)
from assay.environment.locks import LOCKS, read_lock
from assay.environment.metadata import read_metadata
from assay.environment.project_files import ENV_OFF, ProjectFiles
from assay.environment.requirements_files import (
    NAMES,
    RequirementsFile,
    read_requirements_file,
)

_TEST_NAME: Final = re.compile(r"dev|test")
_TOX: Final = "tox.ini"
_FACTOR: Final = re.compile(r"^[\w.,!{}-]+:\s*")


def detect_environment(files: ProjectFiles) -> DeclaredEnvironment:
    """Return the environment that a project declares; empty if it declares none.

    Raises:
        PackageError: If a file that declares packages cannot be used.
    """
    metadata = read_metadata(files)
    project = _editable(metadata)
    names = files.names()
    for lock in LOCKS:
        if lock in names:
            return DeclaredEnvironment(
                requirements=read_lock(files, lock, metadata),
                locked=True,
                project=project,
                files=(lock, *metadata.files),
            )
    listed = _read_requirements_files(files, names)
    if metadata.unread and not listed.requirements:
        raise PackageError(
            f"{metadata.unread[0]} is computed by a program, which Assay does not run",
            hint=f"list the packages in requirements.txt, or add --package; {ENV_OFF}",
        )
    if listed.requirements and listed.hashed:
        return DeclaredEnvironment(
            requirements=tuple(sorted(set(listed.requirements))),
            constraints=tuple(listed.constraints),
            locked=True,
            project=project,
            files=(*listed.files, *metadata.files),
        )
    texts = _declared_texts(metadata, listed)
    sources = [*metadata.files, *listed.files]
    if not _has_tests(metadata, listed) and _TOX in names:
        tox = _read_tox(files, listed)
        texts += tox
        sources += [_TOX] if tox else []
    source = ", ".join(metadata.files) or "the project"
    expanded = metadata.expanded(texts, source=source)
    kept = [one for text in expanded if (one := applicable(text, source=source))]
    plain = [text.partition(" --hash")[0] for text in listed.requirements]
    return DeclaredEnvironment(
        requirements=tuple(dict.fromkeys((*kept, *plain))),
        constraints=tuple(dict.fromkeys(listed.constraints)),
        project=project,
        files=tuple(dict.fromkeys(sources)),
    )


def editable_project(files: ProjectFiles) -> EditableProject | None:
    """Return the metadata of the project itself; None if it states no name.

    Raises:
        PackageError: If a file cannot be used.
    """
    return _editable(read_metadata(files))


def _declared_texts(metadata: ProjectMetadata, listed: RequirementsFile) -> list[str]:
    texts = [*metadata.requires]
    for name in sorted(TEST_GROUPS & metadata.groups.keys()):
        texts += metadata.groups[name]
    for name in sorted({*metadata.test_extras, *listed.extras}):
        texts += metadata.extras.get(name, [])
    return texts


def _has_tests(metadata: ProjectMetadata, listed: RequirementsFile) -> bool:
    named = TEST_GROUPS & (metadata.groups.keys() | metadata.extras.keys())
    return bool(named) or any(_TEST_NAME.search(name) for name in listed.files)


def _read_requirements_files(files: ProjectFiles, names: tuple[str, ...]) -> RequirementsFile:
    listed = RequirementsFile()
    inner = (f"requirements/{name}" for name in files.names("requirements"))
    found = [
        name
        for name in (*names, *inner)
        if NAMES.fullmatch(name) and not (name.endswith(".in") and f"{name[:-3]}.txt" in names)
    ]
    for_tests = any("test" in name for name in found)
    for name in found:
        # Files for developers usually add packages for documentation and formatting.
        if not (for_tests and "dev" in name and "test" not in name):
            read_requirements_file(files, name, listed)
    return listed


def _read_tox(files: ProjectFiles, listed: RequirementsFile) -> list[str]:
    """Return the `deps` of `[testenv]`; lines with factors or substitutions are left out."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(files.read_text(_TOX) or "")
    except configparser.Error as error:
        raise PackageError(f"{_TOX} is not valid: {error}", hint=ENV_OFF) from error
    found: list[str] = []
    for raw in parser.get("testenv", "deps", fallback="").splitlines():
        line = raw.partition("#")[0].strip()
        if not line or _FACTOR.match(line) or "{" in line:
            continue
        if line.startswith("-r"):
            read_requirements_file(files, line.removeprefix("-r").strip(), listed)
        elif not line.startswith("-"):
            found.append(line)
    return found


def _editable(metadata: ProjectMetadata) -> EditableProject | None:
    if not metadata.name:
        return None
    lines: list[str] = []
    for section, entries in sorted(metadata.entry_points.items()):
        lines += [f"[{section}]", *(f"{name} = {place}" for name, place in entries.items()), ""]
    return EditableProject(
        name=canonicalize_name(metadata.name),
        version=metadata.version,
        requires=tuple(text for text in metadata.requires if "\n" not in text),
        entry_points="\n".join(lines),
        folders=tuple(metadata.folders),
    )
