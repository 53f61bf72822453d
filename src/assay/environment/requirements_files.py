"""Requirements files of pip: `-r`, `-c`, hashes and markers; everything else is refused."""

import posixpath
import re
from dataclasses import dataclass, field
from typing import Final

from packaging.utils import canonicalize_name

from assay.contracts.errors import PackageError
from assay.environment.declared import applicable
from assay.environment.project_files import ENV_OFF, ProjectFiles

NAMES: Final = re.compile(
    r"requirements(?:[-_.](?:dev|test|tests|testing|all))?\.(?:txt|in)"
    r"|(?:dev|test|tests|testing)[-_.]requirements\.txt"
    r"|requirements/(?:base|main|requirements|common|dev|test|tests|testing)\.txt"
)
"""Requirements files that belong to the environment; those for documentation do not."""
_COMMENT: Final = re.compile(r"(?:^|\s+)#.*$")
_HASH: Final = re.compile(r"--hash[= ](?P<hash>[a-z0-9]+:[0-9a-f]+)", re.IGNORECASE)
_OPTION: Final = re.compile(r"(?P<name>--?[A-Za-z][\w-]*)(?:[=\s]+(?P<value>.*))?")
_IGNORED: Final = frozenset(
    {
        *("-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links"),
        *("--trusted-host", "--prefer-binary", "--only-binary", "--no-binary", "--pre"),
        *("--require-hashes", "--use-feature"),
    }
)
"""Options about the index: Assay uses the one that the user's pip or uv is configured for."""
_ITSELF: Final = re.compile(r"\.(?:/)?(?:\[(?P<extras>[\w\s,.-]*)\])?")
_DEEPEST: Final = 20


@dataclass(slots=True, kw_only=True)
class RequirementsFile:
    """The lines of a requirements file and of those that it includes."""

    requirements: list[str] = field(default_factory=list[str])
    constraints: list[str] = field(default_factory=list[str])
    hashed: bool = True
    """Whether every requirement is an exact version with hashes."""
    extras: list[str] = field(default_factory=list[str])
    """Extras of the project itself, from lines such as `-e .[test]`."""
    files: list[str] = field(default_factory=list[str])


def read_requirements_file(
    files: ProjectFiles,
    name: str,
    into: RequirementsFile,
    *,
    constraint: bool = False,
    depth: int = 0,
) -> None:
    """Add the requirements of a file, and of the files that it includes.

    Raises:
        PackageError: If a line cannot be used, or a file is missing.
    """
    if name in into.files:
        return
    if depth > _DEEPEST:
        raise PackageError(
            f"{name!r}: requirements files include each other too deeply", hint=ENV_OFF
        )
    text = files.read_text(name)
    if text is None:
        raise PackageError(f"there is no file {name!r} in the project", hint=ENV_OFF)
    into.files.append(name)
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        first = first if pending else number
        line = pending + _COMMENT.sub("", raw)
        if line.endswith("\\"):
            pending = line[:-1] + " "
            continue
        pending = ""
        if line.strip():
            _read_line(files, name, first, line.strip(), into, constraint=constraint, depth=depth)
    if pending.strip():
        _read_line(files, name, first, pending.strip(), into, constraint=constraint, depth=depth)


def _read_line(
    files: ProjectFiles,
    name: str,
    number: int,
    line: str,
    into: RequirementsFile,
    *,
    constraint: bool,
    depth: int,
) -> None:
    source = f"{name} line {number}"
    if line.startswith("-"):
        option = _OPTION.fullmatch(line)
        word, value = (option["name"], (option["value"] or "").strip()) if option else (line, "")
        glued = re.match(r"-([rce])(\S.*)", line)
        if glued and not line.startswith("--") and word not in _IGNORED:
            word, value = f"-{glued[1]}", glued[2].strip()
        if word in {"-r", "--requirement", "-c", "--constraint"}:
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), value))
            nested = constraint or word in {"-c", "--constraint"}
            read_requirements_file(files, other, into, constraint=nested, depth=depth + 1)
        elif word in {"-e", "--editable"}:
            _read_itself(value, into, source)
        elif word not in _IGNORED:
            raise PackageError(f"{source}: Assay does not support {word!r}", hint=ENV_OFF)
        return
    if _ITSELF.fullmatch(line):
        _read_itself(line, into, source)
        return
    hashes = sorted(found["hash"].lower() for found in _HASH.finditer(line))
    text = re.sub(r"\s+--\S.*$", "", line)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|\.{0,2}/|git\+", text):
        raise PackageError(
            f"{source}: {text[:100]!r} is a URL or a path, and Assay installs from the package "
            "index only",
            hint=f"name a package and a version there; {ENV_OFF}",
        )
    requirement = applicable(text, source=source)
    if not requirement:
        return
    if constraint:
        into.constraints.append(requirement)
        return
    exact = "==" in requirement and "*" not in requirement and "," not in requirement
    into.hashed = into.hashed and bool(hashes) and exact
    into.requirements.append(" ".join((requirement, *(f"--hash={one}" for one in hashes))))


def _read_itself(value: str, into: RequirementsFile, source: str) -> None:
    itself = _ITSELF.fullmatch(value.strip("'\""))
    if itself is None:
        raise PackageError(
            f"{source}: Assay supports no other folder than the project itself: {value[:100]!r}",
            hint=ENV_OFF,
        )
    extras = re.split(r"[\s,]+", itself["extras"] or "")
    into.extras += [canonicalize_name(extra) for extra in extras if extra]
