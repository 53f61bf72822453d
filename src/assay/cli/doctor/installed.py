"""Checks of keys, extras, toolchains and folders; no secret is shown."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from assay.contracts.distribution import DISTRIBUTION, install_command
from assay.sandbox.native.doctor.explain import Finding
from assay.settings.load import (
    KEY_VARIABLES,
    ModelSettings,
    Settings,
    credentials_file,
    settings_file,
)

_LEAST_FREE: Final = 1 << 30
_REQUIRED: Final = re.compile(r"""^([\w.-]+).*;.*\bextra\s*==\s*['"]([\w-]+)['"]""")
_TOOLCHAINS: Final = (
    ("node", ("node", "npm"), "JavaScript"),
    ("go", ("go",), "Go"),
    ("rust", ("cargo", "rustc"), "Rust"),
    ("java", ("javac", "java"), "Java"),
    ("C and C++", ("c++", "cmake", "make"), "C++"),
)


def look_at_keys(settings: ModelSettings) -> Iterator[Finding]:
    """Yield which keys are set, without their values."""
    for name in KEY_VARIABLES:
        key = settings.api_keys.get(name)
        if key is None or not key.get_secret_value().strip():
            fix = f"set {name}, or write it into {credentials_file()}"
            yield Finding(name=name, status="info", detail="not set", fix=fix)
        elif any(letter.isspace() for letter in key.get_secret_value().strip()):
            yield Finding(
                name=name,
                status="failed",
                detail="set, but no provider accepts it",
                cause="it contains a space or a line break",
                fix=f"set {name} to the key alone",
            )
        else:
            yield Finding(name=name, status="ok", detail="set")


def look_at_extras(requirements: Sequence[str] | None = None) -> Iterator[Finding]:
    """Yield which extras of this package are fully installed."""
    if requirements is None:
        requirements = metadata.requires(DISTRIBUTION) or ()
    missing: dict[str, list[str]] = {}
    for requirement in requirements:
        if (found := _REQUIRED.match(requirement)) and found[1] != DISTRIBUTION:
            missing.setdefault(found[2], [])
            if not _is_installed(found[1]):
                missing[found[2]].append(found[1])
    for extra, names in sorted(missing.items()):
        if not names:
            yield Finding(name=extra, status="ok", detail="installed")
            continue
        yield Finding(
            name=extra,
            # Extras are optional; a command that needs one reports it.
            status="info",
            detail="not installed",
            cause=f"without {', '.join(names)}",
            fix=install_command(extra),
        )


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def look_at_toolchains(search_path: Sequence[str]) -> Iterator[Finding]:
    """Yield which languages other than Python can be built and tested here."""
    path = os.pathsep.join(search_path)
    for name, programs, language in _TOOLCHAINS:
        places = {program: shutil.which(program, path=path) for program in programs}
        absent = [program for program, place in places.items() if place is None]
        if not absent:
            yield Finding(name=name, status="ok", detail=str(places[programs[0]]))
            continue
        yield Finding(
            name=name,
            status="info",
            detail=f"without {', '.join(absent)}",
            cause=f"programs and tests in {language} need it",
            fix=f"install {', '.join(absent)}, somewhere on PATH",
        )


def look_at_folders(settings: Settings) -> Iterator[Finding]:
    """Yield which files are read, and whether folders are writable, by writing there."""
    for name, path in (("settings file", settings_file()), ("credentials", credentials_file())):
        told = str(path) if path.is_file() else f"none; it would be {path}"
        yield Finding(name=name, status="ok" if path.is_file() else "info", detail=told)
    yield _look_at_folder("state folder", settings.state_dir, "state_dir")
    yield _look_at_folder("models", settings.models.cache_dir, "models.cache_dir")
    yield _look_at_folder("packages", settings.sandbox.packages_dir, "sandbox.packages_dir")


def _look_at_folder(name: str, folder: Path, setting: str) -> Finding:
    home = _nearest(folder)
    fix = f"make it writable for you, or set {setting} to another folder"
    try:
        with tempfile.TemporaryFile(dir=home):
            free = shutil.disk_usage(home).free
    except OSError as error:
        told = f"{folder} cannot be written"
        cause = error.strerror or type(error).__name__
        return Finding(name=name, status="failed", detail=told, cause=cause, fix=fix)
    told = f"{folder}, {free / 1e9:.1f} GB free" + ("" if folder == home else ", not made yet")
    if free < _LEAST_FREE:
        return Finding(
            name=name,
            status="failed",
            detail=told,
            cause="the disk is nearly full",
            fix=f"make room, or set {setting} to another folder",
        )
    return Finding(name=name, status="ok", detail=told)


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
