"""Containers on the real engine: what is left of them, and what works around them."""

import json
import shutil
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

from assay.contracts.execution import Isolation, Limits, PythonCode
from assay.wiring import open_backend
from tests.support.docker import Kind, docker_settings, require_docker
from tests.support.sources import ROOT

pytestmark = pytest.mark.backends

ASSAY = (sys.executable, "-m", "assay")
DOCKER = shutil.which("docker") or ""
EXPECTED = {"docker": Isolation.ISOLATED, "docker+runsc": Isolation.KERNEL}


@pytest.mark.parametrize("kind", ["docker", "docker+runsc"])
@pytest.mark.timeout(600)  # The image may have to be built first.
async def test_a_program_and_its_files_go_into_a_container_and_come_back(kind: Kind) -> None:
    require_docker(kind)
    settings = docker_settings(kind, warm_containers=0).model_copy(update={"preload": ()})

    async with open_backend(settings) as backend, backend.open_sandbox(Limits()) as sandbox:
        await sandbox.write_file(PurePosixPath("data/in.txt"), b"6 7")
        source = b"a, b = open('data/in.txt').read().split()\nopen('out', 'w').write(a + b)"
        result = await sandbox.run(PythonCode(source=source))
        assert result.succeeded, result
        assert await sandbox.read_file(PurePosixPath("out")) == b"67"

    assert result.backend == kind
    assert result.isolation is EXPECTED[kind]


@pytest.mark.timeout(900)
def test_nothing_is_left_when_owners_are_killed() -> None:
    require_docker()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "docker_churn.py"), "--sessions", "12"],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= 1
    assert found["containers_left"] == found["volumes_left"] == found["folders_left"] == []
