"""Files of a project folder, read with bounds: no link leads out, no file is too large."""

import os
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from assay.contracts.errors import PackageError

ENV_OFF: Final = "`--env off` runs without the project's packages"
"""The hint of errors that only the project's files cause."""
_LARGEST_BYTES: Final = 32 << 20
_MOST_NAMES: Final = 10_000


class ProjectFiles:
    """The files below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def read_bytes(self, name: str) -> bytes | None:
        """Return the content of a regular file; None if there is none.

        Raises:
            PackageError: If the name leads out of the folder, or the file is too large.
        """
        path = self._inside(name)
        try:
            if not path.is_file():
                return None
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(_LARGEST_BYTES + 1)
        except OSError as error:
            raise PackageError(
                f"{name!r} cannot be read: {error.strerror}", hint=ENV_OFF
            ) from error
        if len(content) > _LARGEST_BYTES:
            raise PackageError(f"{name!r} has more than {_LARGEST_BYTES >> 20} MB", hint=ENV_OFF)
        return content

    def read_text(self, name: str) -> str | None:
        """Return the text of a file; None if there is none. Raises the errors of `read_bytes`."""
        content = self.read_bytes(name)
        if content is None:
            return None
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PackageError(f"{name!r} is not UTF-8 text", hint=ENV_OFF) from error

    def read_toml(self, name: str) -> dict[str, Any] | None:
        """Return a TOML file as a table; None if there is none.

        Raises:
            PackageError: As for `read_bytes`, or if it is not TOML.
        """
        text = self.read_text(name)
        if text is None:
            return None
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
            raise PackageError(f"{name!r} is not valid TOML: {error}", hint=ENV_OFF) from error

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names of the entries of a folder, sorted; none if there is no such folder."""
        try:
            with os.scandir(self._inside(folder)) as entries:
                found = [entry.name for entry, _ in zip(entries, range(_MOST_NAMES), strict=False)]
        except OSError:
            return ()
        return tuple(sorted(found))

    def has_folder(self, name: str) -> bool:
        """Return whether this is a folder of the project."""
        return self._inside(name).is_dir()

    def _inside(self, name: str) -> Path:
        pure = PurePosixPath(name)
        if pure.is_absolute() or "\0" in name or ".." in pure.parts:
            raise PackageError(f"{name!r} is outside of the project", hint=ENV_OFF)
        try:
            path = (self._root / pure).resolve()
        except (OSError, RuntimeError) as error:
            raise PackageError(f"{name!r} is not a usable path", hint=ENV_OFF) from error
        if not path.is_relative_to(self._root):
            raise PackageError(f"{name!r} is a link that leads out of the project", hint=ENV_OFF)
        return path


def table(value: object, *names: str) -> dict[str, Any]:
    """Return the nested table with these names; empty if it is missing or something else."""
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def strings(value: object) -> list[str]:
    """Return the texts in a list; empty if it is something else."""
    if not isinstance(value, list | tuple):
        return []
    return [one for one in cast("list[object]", value) if isinstance(one, str)]


def tables(value: object) -> list[dict[str, Any]]:
    """Return the tables in a list; empty if it is something else."""
    if not isinstance(value, list | tuple):
        return []
    return [
        cast("dict[str, Any]", one) for one in cast("list[object]", value) if isinstance(one, dict)
    ]
