"""Package layer: the unpacked wheels of one resolved set, created once and never changed."""

import configparser
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL  # noqa: TID251 - a constant for anyio's processes
from typing import Any, Final

import anyio

from assay.contracts.errors import PackageError
from assay.sandbox.packages.resolver import Pin
from assay.sandbox.packages.target import Target

CONTENT: Final = "site"
"""The folder of a layer that a sandbox sees."""
MANIFEST: Final = "manifest.json"

_FORMAT: Final = 1
_COMPILE_WITHIN_S: Final = 300.0
_INTERPRETER: Final = "#!/usr/bin/env python3\n"
_LONGEST_SHEBANG: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer on disk."""

    key: str
    folder: Path
    """The folder that a sandbox sees."""
    pins: tuple[str, ...]
    """All its packages, `name==version`."""
    python: str
    size_bytes: int
    made_at: float
    used_at: float


def layer_key(pins: Sequence[Pin], target: Target) -> str:
    """Return the name of a layer: a digest of everything that determines its contents."""
    content = [_FORMAT, target.python, target.platform, sorted(pin.line for pin in pins)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


async def install(folder: Path, pins: Sequence[Pin], target: Target, *, max_bytes: int) -> None:
    """Turn unpacked wheels into a layer: cleaned, compiled, read-only and with a manifest.

    Raises:
        PackageError: If it contains more than allowed, or forbidden files.
    """
    content = folder / CONTENT
    _rewrite_scripts(content)
    await _compile(content, target)
    size_bytes = _close(content, max_bytes)
    manifest = {
        "pins": [str(pin) for pin in pins],
        "python": target.python,
        "platform": target.platform,
        "size_bytes": size_bytes,
        "made_at": time.time(),
    }
    with (folder / MANIFEST).open("w") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())


def read_layer(folder: Path) -> Layer | None:
    """Return the layer in this folder; None if there is no complete one."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        return Layer(
            key=folder.name,
            folder=folder / CONTENT,
            pins=tuple(manifest["pins"]),
            python=manifest["python"],
            size_bytes=manifest["size_bytes"],
            made_at=manifest["made_at"],
            used_at=path.stat().st_mtime,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _rewrite_scripts(content: Path) -> None:
    """Make commands use the sandbox's interpreter, which is the first on its path."""
    folder = content / "bin"
    for name, module, function in _entry_points(content):
        folder.mkdir(exist_ok=True)
        first = function.partition(".")[0]
        text = f"import sys\nfrom {module} import {first}\nsys.exit({function}())\n"
        (folder / name).write_text(_INTERPRETER + text)
        (folder / name).chmod(0o755)
    for path in folder.glob("*"):
        if path.is_file() and not path.is_symlink():
            _repoint(path)


def _entry_points(content: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(content.glob("*.dist-info/entry_points.txt")):
        parser = configparser.RawConfigParser(delimiters=("=",))
        parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - the documented way to keep upper case
        try:
            parser.read(path, encoding="utf-8")
        except (UnicodeDecodeError, configparser.Error):
            continue
        for section in ("console_scripts", "gui_scripts"):
            for name, place in parser.items(section) if parser.has_section(section) else ():
                module, _, function = place.partition("[")[0].strip().partition(":")
                words = (*module.split("."), *function.split("."))
                if "/" not in name and name not in {"", ".", ".."} and _all_names(words):
                    yield name, module, function


def _all_names(words: Sequence[str]) -> bool:
    return all(word.strip().isidentifier() for word in words)


def _repoint(path: Path) -> None:
    with path.open("rb") as file:
        first = file.readline(_LONGEST_SHEBANG)
        if not (first.startswith(b"#!") and b"python" in first and first.endswith(b"\n")):
            return
        rest = file.read()
    path.write_bytes(_INTERPRETER.encode() + rest)
    path.chmod(0o755)


async def _compile(content: Path, target: Target) -> None:
    """Compile the sources once for all programs. This reads them and runs none of them."""
    if target.interpreter is None:
        return
    arguments = ["-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash", str(content)]
    with anyio.move_on_after(_COMPILE_WITHIN_S):
        # Files that do not compile stay as they are: some are for other versions of Python.
        await anyio.run_process(
            [target.interpreter, "-I", "-S", *arguments],
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            check=False,
            cwd="/",
            env={},
        )


def _close(content: Path, max_bytes: int) -> int:
    """Remove all write permissions and return the total size."""
    size_bytes = 0
    for folder, _, names in os.walk(content, topdown=False):
        for name in names:
            path = Path(folder, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise PackageError(f"{name!r} of a package is neither a file nor a folder")
            size_bytes += status.st_size
            path.chmod(0o555 if status.st_mode & 0o111 else 0o444)
        Path(folder).chmod(0o555)
    if size_bytes > max_bytes:
        raise PackageError(
            f"the packages take up {size_bytes >> 20} MB, and {max_bytes >> 20} MB is all there is",
            hint="raise sandbox.packages_mb, or ask for less",
        )
    return size_bytes
