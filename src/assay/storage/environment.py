"""Where a proof was made: interpreter, machine, sandbox, and the packages that took part."""

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
"""Those whose versions are written out; the digest is over all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What else a result may depend on besides the files."""

    python: str
    """Implementation and version."""
    system: str
    machine: str
    kernel: str
    backend: str
    isolation: str
    packages: Mapping[str, str]
    digest: str
    """SHA-256 over the interpreter, the machine and every installed package."""
    given: tuple[str, ...] = ()
    """Packages that the sandboxes were given on top, `name==version`."""
    hosts: tuple[str, ...] = ()
    """Hosts that they could reach."""


def describe_environment(
    *, backend: str, isolation: str, given: tuple[str, ...] = (), hosts: tuple[str, ...] = ()
) -> Environment:
    """Look at the interpreter that sandboxed Python is run with."""
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
