"""Globs: of settings and configuration files, and of shell commands."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath


def matches(path: PurePosixPath, patterns: Iterable[str]) -> bool:
    """Whether a glob matches this path, as a whole, by its last part or by a folder above it."""
    return any(
        fnmatchcase(str(path), pattern)
        or fnmatchcase(path.name, pattern)
        or str(path).startswith(f"{pattern.rstrip('/')}/")
        for given in patterns
        # `**/` matches any folders, or none.
        for pattern in {given, given.removeprefix("**/")}
    )


def matches_in_shell(path: PurePosixPath, glob: PurePosixPath) -> bool:
    """Whether a shell expands a glob to this path: part by part, and without hidden files."""
    return len(path.parts) == len(glob.parts) and all(
        fnmatchcase(part, pattern) and (not part.startswith(".") or pattern.startswith("."))
        for part, pattern in zip(path.parts, glob.parts, strict=True)
    )
