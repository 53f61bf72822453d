"""Scope of a run for the memory: its project and its interpreter."""

import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Final

from assay.memory.types import Place

_MATTER: Final = ("matplotlib", "numpy", "pandas", "pytest", "scikit-learn", "scipy")
"""Libraries whose versions decide whether a lesson still holds."""
_DIGEST_CHARS: Final = 8
_RELEASE_PARTS: Final = 2


def current_place(folder: str = "") -> Place:
    """Return the scope of a run in this folder; without a folder, a scope without project."""
    return Place(project=project_of(folder) if folder else "", environment=environment_digest())


def project_of(folder: str) -> str:
    """Return the name of a project: its folder name and a digest of the path."""
    path = Path(os.path.expanduser(folder)).resolve()  # noqa: PTH111 - leaves unknown accounts alone
    return f"{path.name}-{_digest(str(path))}"


def environment_digest() -> str:
    """Return what distinguishes interpreters: their release and that of common libraries.

    Patch releases do not count: otherwise lessons would almost never match.
    """
    about = {"python": _release(platform.python_version())}
    for name in _MATTER:
        try:
            about[name] = _release(metadata.version(name))
        except metadata.PackageNotFoundError:
            about[name] = ""
    return _digest(json.dumps(about, sort_keys=True))


def _release(version: str) -> str:
    return ".".join(version.split(".")[:_RELEASE_PARTS])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGEST_CHARS]
