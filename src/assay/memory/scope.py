"""Says where a run takes place, for memory: which project, and with which interpreter."""

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
    """Return the place of a run in this folder; of a run without one, a place without project."""
    return Place(project=project_of(folder) if folder else "", environment=environment_digest())


def project_of(folder: str) -> str:
    """Name a project after its folder: told apart by where it is, without saying so."""
    path = Path(os.path.expanduser(folder)).resolve()  # noqa: PTH111 - leaves unknown accounts alone
    return f"{path.name}-{_digest(str(path))}"


def environment_digest() -> str:
    """Return what tells interpreters apart: their release and that of the usual libraries.

    Without patch releases: a lesson would hardly ever be old enough to be of use.
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
