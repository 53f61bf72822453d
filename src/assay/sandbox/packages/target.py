"""Target interpreter of packages, and the preloaded packages that must keep their version."""

import platform
import re
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from assay.sandbox.packages.requirements import canonical_name, package_of_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An interpreter that will import the packages."""

    python: str
    """Its version, `3.11`."""
    platform: str
    """The platform of its machine, in uv's format: `x86_64-unknown-linux-gnu`."""
    present: tuple[str, ...] = ()
    """Packages imported before a program starts, `numpy==2.4.1`; their versions are fixed."""
    interpreter: str | None = None
    """An equal interpreter on this machine, if any; uv asks it which wheels it can load."""

    @property
    def words(self) -> str:
        return f"Python {self.python} on {self.platform}"


def own_target(preloaded: Iterable[str]) -> Target:
    """Describe this process's interpreter, for sandboxes that run it too."""
    libc = "musl" if "musl" in (sysconfig.get_config_var("SOABI") or "") else "gnu"
    return Target(
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        platform=f"{platform.machine()}-unknown-linux-{libc}",
        present=present_distributions(preloaded),
        interpreter=sys.executable,
    )


def present_distributions(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the installed packages that importing these modules loads, with versions."""
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
    """Return the packages that contain a module; checks those of the same name first, for speed."""
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
