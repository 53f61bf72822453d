"""Finds compilers and runtimes outside `/usr` that a jail can provide.

A folder is used only if it is recognizably one distribution and nothing else: a `node` in a
person's `~/.local` would expose that person's files.
"""

import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """One self-contained distribution with a `bin` folder."""

    name: str
    prefix: str


_MARKERS: Final[tuple[tuple[str, str, str], ...]] = (
    # name, program, a path that exists only at the root of such a distribution
    ("node", "node", "include/node/node_version.h"),
    ("go", "go", "src/runtime/runtime.go"),
    ("java", "javac", "release"),
    ("rust", "rustc", "lib/rustlib/components"),
)
_PERSONAL: Final = (".ssh", ".config", ".local", ".bashrc", ".profile", "share/keyrings")


def find_toolchains(folders: Sequence[str]) -> tuple[Toolchain, ...]:
    """Search the folders; no program is started."""
    found: list[Toolchain] = []
    for name, program, marker in _MARKERS:
        executable = _first(program, folders)
        prefix = executable and _prefix_of(executable)
        if prefix and _is_self_contained(prefix, marker):
            found.append(Toolchain(name=name, prefix=str(prefix)))
    return tuple(found)


def _first(program: str, folders: Sequence[str]) -> Path | None:
    for folder in folders:
        candidate = Path(folder, program)
        # A folder on the search path may belong to another user.
        with suppress(OSError):
            if candidate.is_file():
                return candidate
    return None


def _prefix_of(executable: Path) -> Path | None:
    real = executable.resolve()
    if real.name == "rustup":
        return _rustup_toolchain(executable.parent.parent.parent / ".rustup")
    if real.is_relative_to("/usr"):
        return None
    return real.parent.parent


def _rustup_toolchain(home: Path) -> Path | None:
    try:
        settings = tomllib.loads((home / "settings.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return None
    chosen = home / "toolchains" / str(settings.get("default_toolchain", ""))
    return chosen.resolve() if chosen.is_dir() else None


def _is_self_contained(prefix: Path, marker: str) -> bool:
    return (prefix / marker).exists() and not any((prefix / name).exists() for name in _PERSONAL)
