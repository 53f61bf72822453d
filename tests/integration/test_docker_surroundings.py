"""Assay on an engine in trouble, on images that are no good, and in a container of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.contracts.errors import ExitCode
from assay.settings.load import load_settings
from tests.support.docker import containers, require_docker
from tests.support.requirements import require
from tests.support.second_engine import open_second_engine
from tests.support.sources import ROOT

pytestmark = [pytest.mark.backends, pytest.mark.timeout(600)]

DOCKER = shutil.which("docker") or ""
RUN = (sys.executable, "-m", "assay", "sandbox", "run", "--backend", "docker")


def docker(*words: str, stdin: bytes = b"") -> str:
    asked = [DOCKER, *words]
    done = subprocess.run(asked, input=stdin, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def base_image() -> str:
    require_docker()
    return load_settings().sandbox.docker.base_image


def run_assay(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, "--", "true"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def explained(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """What was said in the end: one line, and a hint."""
    assert done.returncode == ExitCode.INFRASTRUCTURE, done.stderr
    *notices, error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert not any(notice.startswith(("Traceback", "error")) for notice in notices)
    return error, hint


def images_of_assay() -> set[str]:
    """With and without a name, and those on the way to another."""
    asked = ("images", "--all", "--quiet", "--filter", "label=dev.assay.image")
    return set(docker(*asked).split())


@contextmanager
def an_image(name: str, dockerfile: str) -> Generator[str]:
    """An image of the machine's own engine, gone in the end."""
    docker("build", "--quiet", "--network", "none", "--tag", name, "-", stdin=dockerfile.encode())
    try:
        yield name
    finally:
        docker("rmi", name)


async def test_a_full_disk_is_called_that_and_nothing_is_half_made() -> None:
    base = base_image()
    require("root", available=os.geteuid() == 0, why="only root mounts and starts engines")
    async with open_second_engine() as engine:
        engine.load(base)

        done = run_assay(DOCKER_HOST=engine.address)

        error, hint = explained(done)
        assert "the disk of the Docker engine is full" in error
        assert "make room" in hint
        assert engine.ask("ps", "--all", "--quiet") == ""
        assert engine.ask("volume", "ls", "--quiet") == ""
        assert len(engine.ask("images", "--all", "--quiet").split()) == 1, "only the base image"


def test_an_image_that_does_not_build_ends_with_why_and_nothing_is_half_made() -> None:
    base = base_image()
    spoilt = f'FROM {base}\nUSER 0\nRUN python3 -c "import os, venv; os.remove(venv.__file__)"\n'
    with an_image("assay-test-without-venv", spoilt) as name:
        before = images_of_assay()

        error, hint = explained(run_assay(ASSAY_SANDBOX__DOCKER__BASE_IMAGE=name))

        assert images_of_assay() <= before
    assert "cannot be built" in error
    assert "venv" in error
    assert "sandbox.docker.base_image" in hint


def test_an_image_without_python_is_refused_and_leaves_nothing() -> None:
    require_docker()
    made = docker("import", "-", "assay-test-empty", stdin=bytes(10240)).strip()
    try:
        error, hint = explained(run_assay(ASSAY_SANDBOX__DOCKER__BASE_IMAGE="assay-test-empty"))
    finally:
        docker("rmi", made)

    assert "has no Python" in error
    assert "sandbox.docker.base_image" in hint


IN_A_CONTAINER = """
set -e
mkdir -p /tmp/project && cd /tmp/project && echo 6 7 > in.txt
"$0" -m assay sandbox run --backend docker --workspace . --apply -- \
    sh -c 'read a b < in.txt; echo $((a * b)) > out.txt; pwd'
cat out.txt
"$0" -c 'from assay.sandbox.docker.labels import place; print(place())'
"""


def test_from_a_container_with_the_socket_sandboxes_are_siblings_and_paths_are_right() -> None:
    base = base_image()
    socket = load_settings().sandbox.docker.socket.removeprefix("unix://")
    # The image is there before, so that it need not be built in there.
    assert run_assay().returncode == 0
    readable = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    mounts = [f"--volume={folder}:{folder}:ro" for folder in readable]

    said = docker(
        *("run", "--rm", "--network", "none", f"--volume={socket}:/engine.sock", *mounts),
        *("--env", "HOME=/tmp", "--env", "DOCKER_HOST=unix:///engine.sock"),
        *("--env", f"ASSAY_SANDBOX__DOCKER__BASE_IMAGE={base}"),
        *(base, "sh", "-c", IN_A_CONTAINER, sys.executable),
    )

    where, answer, place = said.splitlines()
    assert (where, answer) == ("/app", "42")
    assert containers(label=f"dev.assay.owner.place={place}") == []
