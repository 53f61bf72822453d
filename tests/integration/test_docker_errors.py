"""What goes wrong with Docker is said in one line, with what to do; nothing is left half-made."""

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.errors import ExitCode, IsolationUnavailableError, SandboxUnavailableError
from assay.contracts.execution import Limits
from assay.sandbox.docker.backend import DockerBackend, open_docker
from assay.sandbox.docker.engine import EngineError, open_engine
from assay.sandbox.docker.image import ensure_image
from assay.sandbox.packages.store import PackageStore
from assay.settings.load import SandboxSettings
from assay.settings.sections import DockerSettings
from tests.support.fake_docker import FakeDocker, a_fake_docker
from tests.support.ordinary_user import OrdinaryUser

WORDS = ("-m", "assay", "sandbox", "run", "--backend", "docker", "--", "true")
HERE = "sha256:" + "0" * 64


def settings(address: str, folder: Path) -> SandboxSettings:
    docker = DockerSettings(socket=address, base_image="base", warm_containers=0, cpus=1.0)
    return SandboxSettings(docker=docker, packages_dir=folder, preload=())


def no_packages(folder: Path) -> PackageStore:
    return PackageStore(folder, environment={}, max_bytes=1)


def opening(
    address: str, folder: Path, *, gvisor: bool = False
) -> AbstractAsyncContextManager[DockerBackend]:
    return open_docker(settings(address, folder), no_packages(folder), gvisor=gvisor)


async def refusal(address: str, folder: Path, *, gvisor: bool = False) -> IsolationUnavailableError:
    with pytest.raises(IsolationUnavailableError) as caught:
        async with opening(address, folder, gvisor=gvisor):
            pass
    return caught.value


def command(address: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *WORDS],
        env={**os.environ, "ASSAY_SANDBOX__DOCKER__SOCKET": address, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_without_an_engine_the_hint_is_to_install_one(tmp_path: Path) -> None:
    error = await refusal(str(tmp_path / "nothing.sock"), tmp_path)

    assert "there is no Docker engine" in str(error)
    assert "install Docker" in error.hint


@pytest.mark.parametrize("address", ["http://[", "tcp://", "nonsense://x", "tcp://127.0.0.1:1"])
async def test_an_address_that_leads_nowhere_is_an_error_and_no_crash(
    address: str, tmp_path: Path
) -> None:
    error = await refusal(address, tmp_path)

    assert address in str(error)
    assert error.hint
    assert error.exit_code == ExitCode.INFRASTRUCTURE


async def test_a_stopped_engine_is_told_from_a_missing_one(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "docker.sock"))

    error = await refusal(str(tmp_path / "docker.sock"), tmp_path)

    assert "does not run" in str(error)
    assert "start it" in error.hint


def test_the_command_says_it_in_one_line_and_ends_with_4(tmp_path: Path) -> None:
    done = command(str(tmp_path / "nothing.sock"))

    assert done.returncode == ExitCode.INFRASTRUCTURE
    first, hint, *rest = done.stderr.splitlines()
    assert first.startswith("error: there is no Docker engine")
    assert hint.startswith("hint: ")
    assert not rest


def test_a_socket_that_is_not_for_us_is_said_to_be(user: OrdinaryUser) -> None:
    # Not pytest's folder: other users may not enter it.
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        Path(folder).chmod(0o755)
        path = Path(folder) / "docker.sock"
        listening.bind(str(path))
        path.chmod(0)  # the owner may be the user who connects
        listening.listen()

        done = user.run(
            [
                str(user.python),
                "-m",
                "assay",
                "sandbox",
                "run",
                "--backend",
                "docker",
                "--",
                "true",
            ],
            env={"ASSAY_SANDBOX__DOCKER__SOCKET": str(path)},
        )

    assert done.returncode == ExitCode.INFRASTRUCTURE
    assert "no permission to use the Docker engine" in done.stderr
    assert "as good as root" in done.stderr


async def test_a_runtime_that_is_not_registered_is_named(tmp_path: Path) -> None:
    with a_fake_docker(tmp_path) as fake:
        error = await refusal(fake.socket, tmp_path, gvisor=True)

    assert "no runtime 'runsc'" in str(error)
    assert "daemon.json" in error.hint


async def test_a_base_image_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    with a_fake_docker(tmp_path) as fake:
        fake.answers = {
            r"GET /images/.*": (404, {"message": "No such image"}),
            r"POST /images/create": (404, {"message": "pull access denied for base"}),
        }
        error = await refusal(fake.socket, tmp_path)

    assert "'base' is not there and cannot be fetched" in str(error)
    assert "sandbox.docker.base_image" in error.hint


def only_packages_missing(error: dict[str, Any], *steps: str) -> dict[str, tuple[int, Any]]:
    said = [*({"stream": f"{step}\n"} for step in steps), error]
    return {
        r"GET /images/assay-python:packages.*": (200, {"Id": HERE}),
        r"GET /images/assay-python:.*": (404, {"message": "No such image"}),
        r"POST /build": (200, said),
    }


async def building(fake: FakeDocker, folder: Path) -> EngineError:
    given = settings(fake.socket, folder)
    async with open_engine(fake.socket) as engine:
        with pytest.raises(EngineError) as caught:
            await ensure_image(engine, given, no_packages(folder), lambda _: None)
    return caught.value


async def test_a_failed_build_ends_with_the_last_lines_and_leaves_nothing(tmp_path: Path) -> None:
    with a_fake_docker(tmp_path) as fake:
        fake.answers = only_packages_missing(
            {"error": "The command returned a non-zero code: 1"},
            "Step 1/2 : FROM base",
            "ImportError: libz.so.1 is missing",
        )
        error = await building(fake, tmp_path)

    assert "cannot be built" in str(error)
    assert "non-zero code: 1" in str(error)
    assert "libz.so.1 is missing" in str(error)
    assert "\n" not in str(error)
    assert "POST /images/prune" in fake.asked


async def test_a_full_disk_while_building_is_called_that(tmp_path: Path) -> None:
    with a_fake_docker(tmp_path) as fake:
        fake.answers = only_packages_missing({"error": "write /x: no space left on device"})
        error = await building(fake, tmp_path)

    assert "disk of the Docker engine is full" in str(error)
    assert "make room" in error.hint
    assert error.exit_code == ExitCode.INFRASTRUCTURE


async def test_a_full_disk_while_starting_is_called_that_and_the_container_removed(
    tmp_path: Path,
) -> None:
    with a_fake_docker(tmp_path) as fake:
        fake.answers = {
            r"POST /containers/create": (201, {"Id": "abc"}),
            r"POST /containers/abc/attach": (500, {"message": "no space left on device"}),
            r"DELETE /containers/abc": (204, None),
        }
        async with opening(fake.socket, tmp_path) as backend:
            with pytest.raises(SandboxUnavailableError) as caught:
                async with backend.open_sandbox(Limits()):
                    pass

    assert "disk of the Docker engine is full" in str(caught.value)
    assert "make room" in caught.value.hint
    assert caught.value.dispatch == "never_started"
    assert "DELETE /containers/abc" in fake.asked


async def test_an_engine_that_answers_nonsense_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with a_fake_docker(tmp_path) as fake:
        fake.answers = {r"GET /info": (500, {"message": "panic"})}
        error = await refusal(fake.socket, tmp_path)

    assert "the Docker engine refused: panic" in str(error)
