"""The services of compose.yaml, started for real, under names and ports of their own."""

import json
import os
import shutil
import socket
import subprocess  # noqa: TID251 - the engine is asked from outside
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from assay.settings.load import load_settings
from tests.support.docker import require_docker
from tests.support.requirements import require

ROOT = Path(__file__).parents[2]
SERVICES = ("executor", "mcp", "api")
PORTS: tuple[str, ...] = (
    "ASSAY_EXECUTOR_PORT",
    "ASSAY_METRICS_PORT",
    "ASSAY_MCP_FILES_PORT",
    "ASSAY_MCP_PROGRAMS_PORT",
    "ASSAY_API_PORT",
)


@cache
def compose_command() -> tuple[str, ...]:
    """How compose is called here; nothing if it is not here."""
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and _succeeds(*command, "version"):
            return command
    return ()


def _succeeds(*command: str) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Services that run."""

    project: str
    secrets: Path
    ports: dict[str, int]
    environment: dict[str, str]
    api_key: str = ""

    def compose(self, *words: str) -> str:
        """Have compose do something; returns what it says.

        Raises:
            AssertionError: If it does not.
        """
        command = [*compose_command(), "--project-name", self.project, *words]
        done = _run(command, env=self.environment)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def container(self, service: str) -> dict[str, Any]:
        """What the engine says of the one container of a service."""
        found = self.left("container", f"label=com.docker.compose.service={service}")
        assert len(found) == 1, found
        return json.loads(docker("inspect", found[0]))[0]

    def is_well(self, service: str) -> bool:
        """Whether the health check of a service has passed: an open port alone says nothing."""
        return self.container(service)["State"]["Health"]["Status"] == "healthy"

    def left(self, kind: str, *filters: str) -> list[str]:
        """The containers, networks or volumes of this project."""
        words = ["--all"] if kind == "container" else []
        for each in (f"label=com.docker.compose.project={self.project}", *filters):
            words += ["--filter", each]
        return docker(kind, "ls", "--quiet", *words).split()


def docker(*words: str) -> str:
    """Ask the engine something.

    Raises:
        AssertionError: If it refuses.
    """
    done = _run(["docker", *words])
    assert done.returncode == 0, done.stderr
    return done.stdout


def logs_of(container: str) -> str:
    """What a container has said so far, on both streams."""
    done = _run(["docker", "logs", container])
    return done.stdout + done.stderr


def _run(
    command: Sequence[str], *, env: dict[str, str] | None = None, timeout_s: float = 600
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def build_images() -> None:
    """Build them as a user would, on the base that the tests have."""
    base = load_settings().sandbox.docker.base_image
    done = _run(["make", "images", f"BASE_IMAGE={base}"], timeout_s=900)
    assert done.returncode == 0, done.stdout + done.stderr


def build_executor(extras: str, tag: str) -> None:
    """Build the image of the executor with more extras, as `make images` does with these."""
    base = load_settings().sandbox.docker.base_image
    words = ("--quiet", "--network", "none", "--file", "deploy/executor.Dockerfile")
    given = ("--build-arg", f"BASE_IMAGE={base}", "--build-arg", f"EXTRAS={extras}")
    docker("build", *words, *given, "--tag", tag, "build/images")


@contextmanager
def open_deployment(folder: Path) -> Generator[Deployment]:
    """Start everything, and take all of it away at the end, however the test goes."""
    require_docker()
    require("compose", available=bool(compose_command()), why="there is no docker compose")
    build_images()
    secrets = folder / "secrets"
    made = _run(
        ["deploy/secrets.sh", str(secrets), str(folder / "env")],
        env={**os.environ, "ASSAY": str(ROOT / ".venv/bin/assay")},  # noqa: TID251 - for a script
    )
    assert made.returncode == 0, made.stderr
    owner = dict(line.split("=") for line in (folder / "env").read_text().split() if "=" in line)
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    deployment = Deployment(
        project=f"assay-test-{os.getpid()}",
        secrets=secrets,
        ports=ports,
        environment={
            **os.environ,  # noqa: TID251 - for a program that reads its own
            **owner,
            **{name: str(port) for name, port in ports.items()},
            "ASSAY_SECRETS": str(secrets),
        },
    )
    try:
        # As a person would do it: nobody gets in before there is a key.
        making = ("keys", "create", "tester", "--role", "admin")
        key = deployment.compose("run", "--rm", "--no-deps", "-T", "api", *making)
        deployment.compose("up", "--detach")
        yield replace(deployment, api_key=key.split()[-1])
    finally:
        deployment.compose("down", "--volumes")


def free_ports(count: int) -> list[int]:
    """Ports that nobody has at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
