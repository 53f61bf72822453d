"""Wheels that a builder sandbox made of source distributions, stored under the hash of the source.

The hash of a built wheel differs from build to build. Pins therefore carry the hash of the source.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from assay.contracts.errors import PackageError

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PREFIX: Final = "sha256:"


@dataclass(frozen=True, slots=True)
class BuiltWheels:
    """The built wheels of one store: one folder for each source, with one wheel."""

    folder: Path

    def find(self, hashes: Sequence[str]) -> Path | None:
        """Return the wheel that was built of the source with one of these hashes."""
        for value in hashes:
            source = value.removeprefix(_PREFIX)
            if _SHA256.fullmatch(source):
                for path in (self.folder / source).glob("*.whl"):
                    return path
        return None

    def find_links(self) -> tuple[str, ...]:
        """Return uv's options that make all built wheels available."""
        return tuple(word for path in self._wheels() for word in ("--find-links", str(path.parent)))

    def source_of(self, hashes: Sequence[str]) -> str:
        """Return the hash of the source of a wheel; empty if it was not built here."""
        for path in self._wheels():
            if f"{_PREFIX}{_digest(path)}" in hashes:
                return f"{_PREFIX}{path.parent.name}"
        return ""

    def add(self, source_sha256: str, file_name: str, content: bytes, *, name: str) -> None:
        """Store a wheel that came out of a sandbox.

        Raises:
            PackageError: If it is not a wheel of this package.
        """
        # It belongs to an extra, and every sandbox imports this module.
        from packaging.utils import (
            InvalidWheelFilename,
            canonicalize_version,
            parse_wheel_filename,
        )

        try:
            found, version, _, _ = parse_wheel_filename(file_name)
        except InvalidWheelFilename as error:
            raise PackageError(
                f"the build of {name!r} made no wheel: {file_name[:100]!r}"
            ) from error
        if found != name or not canonicalize_version(version):
            raise PackageError(f"the build of {name!r} made a wheel of {found!r}")
        folder = self.folder / source_sha256
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{os.urandom(4).hex()}"
        draft.write_bytes(content)
        draft.rename(folder / file_name)

    def _wheels(self) -> Iterator[Path]:
        yield from sorted(self.folder.glob("*/*.whl"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
