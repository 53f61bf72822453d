"""Debian packages: query and installation."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio

from assay.bench.toolchains.toolchain import Missing, OnNotice
from assay.contracts.errors import AssayError


def package(what: str, name: str) -> Missing:
    """Describe a missing Debian package."""
    return Missing(what=what, fix=f"apt-get install {name}")


async def install_packages(names: Sequence[str], on_notice: OnNotice) -> None:
    """Install Debian packages.

    Raises:
        AssayError: If this is not Debian, the user is not root, or the installation fails.
    """
    said = f"apt-get install {' '.join(names)}"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise AssayError("packages can be installed by root on Debian only", hint=f"run `{said}`")
    on_notice(f"installing {', '.join(names)}")
    env = {"DEBIAN_FRONTEND": "noninteractive", "PATH": os.defpath, "LANG": "C.UTF-8"}
    base = ["apt-get", "-y", "-qq", "--no-install-recommends"]
    if await run_quietly([*base, "install", *names], env=env):
        # The package lists may be missing or old.
        await run_quietly(["apt-get", "-qq", "update"], env=env)
        if problem := await run_quietly([*base, "install", *names], env=env):
            raise AssayError(f"{said}: {problem}", hint="install them by hand")


async def run_quietly(
    command: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run a program to its end; returns the error, or an empty string."""
    try:
        result = await anyio.run_process(command, check=False, env=env, cwd=cwd)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if result.returncode == 0:
        return ""
    lines = (result.stderr or result.stdout).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"{command[0]} ended with exit code {result.returncode}"


def first_on(search_path: Sequence[str], program: str) -> Path | None:
    """Return the path of a program."""
    found = shutil.which(program, path=os.pathsep.join(search_path))
    return Path(found) if found else None
