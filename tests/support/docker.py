"""The Docker engine of the machine that the tests run on, and backends on it."""

import asyncio
import shutil
import subprocess  # noqa: TID251 - asks the engine from outside
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Literal

from assay.contracts.ports import SandboxBackend
from assay.settings.load import SandboxSettings, load_settings
from assay.wiring import open_backend
from tests.support.backends import live
from tests.support.requirements import require

Kind = Literal["docker", "docker+runsc"]
KINDS: tuple[Kind, ...] = ("docker", "docker+runsc")


@cache
def runtimes() -> str:
    """What the engine knows, or nothing if there is no engine."""
    if shutil.which("docker") is None:
        return ""
    asked = ["docker", "info", "--format", "{{json .Runtimes}}"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else ""


def require_docker(kind: Kind = "docker") -> None:
    """Go on only where there is an engine, and gVisor if that is what is wanted."""
    require("docker", available=bool(runtimes()), why="no Docker engine answers")
    if kind == "docker+runsc":
        require("runsc", available="runsc" in runtimes(), why="the engine has no runtime runsc")


def docker_settings(kind: Kind = "docker", *, warm_containers: int = 1) -> SandboxSettings:
    """The settings of whoever runs the tests, for one backend."""
    words = {"backend": kind, "docker": {"warm_containers": warm_containers}}
    return load_settings({"sandbox": words}).sandbox


@asynccontextmanager
async def open_docker_backend(
    kind: Kind, *, warm_containers: int = 1
) -> AsyncGenerator[SandboxBackend]:
    """Open a backend that outlives the tasks of single tests."""
    require_docker(kind)
    opened: asyncio.Future[SandboxBackend] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()
    opening = open_backend(docker_settings(kind, warm_containers=warm_containers))
    life = asyncio.create_task(live(opening, opened, done))
    backend = await opened
    try:
        yield backend
    finally:
        done.set()
        await life


def containers(*, label: str = "dev.assay.sandbox") -> list[str]:
    """The containers of Assay's that there are, by name."""
    asked = ["docker", "ps", "--all", "--filter", f"label={label}", "--format", "{{.Names}}"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()
