"""For which interpreter packages are fetched, and what it has loaded that must stay as it is."""

import platform
import re
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from assay.sandbox.packages.requirements import canonical_name
from assay.sandbox.packages.suggestions import package_of_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An interpreter that packages are to be imported by."""

    python: str
    """Its version, `3.11`."""
    platform: str
    """Of the machine it runs on, as uv calls it: `x86_64-unknown-linux-gnu`."""
    present: tuple[str, ...] = ()
    """What is imported before a program starts, `numpy==2.4.1`: never another version of it."""
    interpreter: str | None = None
    """One of its kind on this machine, if there is one: it is asked which wheels it can load."""

    @property
    def words(self) -> str:
        return f"Python {self.python} on {self.platform}"


def own_target(preloaded: Iterable[str]) -> Target:
    """Describe the interpreter that runs this, for sandboxes that run it too."""
    libc = "musl" if "musl" in (sysconfig.get_config_var("SOABI") or "") else "gnu"
    return Target(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        platform=f"{platform.machine()}-unknown-linux-{libc}",
        present=present_distributions(preloaded),
        interpreter=sys.executable,
    )


def present_distributions(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the installed packages that importing these modules brings in, with versions."""
    found: dict[str, str] = {}
    waiting = [name for module in modules for name in _homes(module.partition(".")[0])]
    while waiting:
        name = canonical_name(waiting.pop())
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        waiting += _needed(distribution.requires or ())
    return tuple(f"{name}=={version}" for name, version in sorted(found.items()))


def _homes(module: str) -> list[str]:
    """The packages that hold a module; most are called like it, and to ask the others is slow."""
    for name in (package_of_module(module), module):
        with suppress(metadata.PackageNotFoundError):
            return [metadata.distribution(name).metadata["Name"]]
    return metadata.packages_distributions().get(module, [])


def _needed(requires: Iterable[str]) -> list[str]:
    names: list[str] = []
    for text in requires:
        requirement, _, marker = text.partition(";")
        name = re.match(r"[\w.-]+", requirement)
        if name is not None and "extra" not in marker:
            names.append(name[0])
    return names
