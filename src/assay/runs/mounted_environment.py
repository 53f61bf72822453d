"""An existing virtual environment of the user, whose packages are mounted read-only."""

import hashlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

from assay.contracts.errors import UsageError
from assay.settings.load import SandboxSettings

_VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
_BACKENDS: Final = frozenset({"auto", "native"})


def find_site_packages(path: str, sandbox: SandboxSettings) -> Path:
    """Return the packages of a virtual environment for the interpreter of the sandboxes.

    Raises:
        UsageError: If there is none, or the backend cannot mount it.
    """
    folder = Path(path).expanduser().absolute()
    if sandbox.backend not in _BACKENDS:
        raise UsageError(
            f"the backend {sandbox.backend} cannot mount a virtual environment",
            hint="use `--env auto`, or the native backend",
        )
    if not (folder / "pyvenv.cfg").is_file():
        raise UsageError(
            f"--env {path!r} is neither auto, off, nor the folder of a virtual environment",
            hint="name a folder that contains pyvenv.cfg, such as .venv",
        )
    site = folder / "lib" / _VERSION / "site-packages"
    if not site.is_dir():
        others = ", ".join(sorted(each.name for each in (folder / "lib").glob("python3*")))
        raise UsageError(
            f"the virtual environment {path!r} is for {others or 'no interpreter'}, and sandboxes "
            f"run {_VERSION}",
            hint=f"create it with {_VERSION}, or use `--env auto`",
        )
    return site.resolve()


def installed_packages(site: Path) -> tuple[str, ...]:
    """Return the packages of a folder, `name==version sha256:…`, with the digest of their files.

    The digest is that of RECORD, which lists each file with its hash.
    """
    found = {
        f"{each.name.lower()}=={each.version} sha256:"
        + hashlib.sha256((each.read_text("RECORD") or "").encode()).hexdigest()
        for each in metadata.distributions(path=[str(site)])
        if each.name
    }
    return tuple(sorted(found))
