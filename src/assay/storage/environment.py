"""Environment of a verification: interpreter, machine, sandbox and packages."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Final

_NAMED: Final = frozenset(
    {
        *("pytest", "pluggy", "iniconfig", "hypothesis", "pytest-asyncio", "pytest-timeout"),
        *("numpy", "pandas", "scipy", "scikit-learn", "matplotlib"),
    }
)
"""Packages whose versions are listed; the digest covers all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The facts other than the files on which a result may depend."""

    python: str
    """Implementation and version."""
    system: str
    machine: str
    kernel: str
    backend: str
    isolation: str
    packages: Mapping[str, str]
    digest: str
    """SHA-256 of the interpreter, the machine and every installed package."""
    given: tuple[str, ...] = ()
    """Packages that the sandboxes received in addition, `name==version`."""
    hosts: tuple[str, ...] = ()
    """Hosts that the sandboxes could reach."""


def describe_environment(
    *, backend: str, isolation: str, given: tuple[str, ...] = (), hosts: tuple[str, ...] = ()
) -> Environment:
    """Describe the interpreter that runs sandboxed Python."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    installed = {
        name.lower(): distribution.version
        for distribution in metadata.distributions()
        if (name := distribution.name)
    }
    about = [python, platform.system(), platform.machine(), sorted(installed.items())]
    return Environment(
        python=python,
        system=platform.system(),
        machine=platform.machine(),
        kernel=platform.release(),
        backend=backend,
        isolation=isolation,
        packages={name: installed[name] for name in sorted(_NAMED & installed.keys())},
        digest=hashlib.sha256(json.dumps(about).encode()).hexdigest(),
        given=given,
        hosts=hosts,
    )
