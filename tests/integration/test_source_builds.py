"""Source distributions: built in a sandbox without a network, and nowhere else."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from assay.contracts.errors import PackageError
from assay.contracts.execution import Command, Limits
from assay.runs.environment import prepare_environment
from assay.settings.load import load_settings
from assay.wiring import open_backend
from tests.support.requirements import require

_HARMFUL = """
import os, pathlib, socket
from setuptools import setup

report = [f"uid namespace {{os.readlink('/proc/self/ns/user')}}"]
try:
    pathlib.Path({marker!r}).write_text("executed on the host")
except OSError as error:
    report.append(f"write: {{error.strerror}}")
try:
    report.append("read: " + pathlib.Path({secret!r}).read_text())
except OSError as error:
    report.append(f"read: {{error.strerror}}")
try:
    socket.create_connection(("192.0.2.1", 443), timeout=2)
except OSError as error:
    report.append("network: none")
pathlib.Path("harmful.py").write_text(f"REPORT = {{report!r}}\\n")
setup(name="harmful", version="1.0", py_modules=["harmful"])
"""


def make_source(folder: Path, script: str) -> None:
    folder.mkdir()
    about = "Metadata-Version: 2.1\nName: harmful\nVersion: 1.0\n"
    with tarfile.open(folder / "harmful-1.0.tar.gz", "w:gz") as archive:
        for name, text in (("setup.py", script), ("PKG-INFO", about)):
            member = tarfile.TarInfo(f"harmful-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


async def test_a_setup_script_runs_in_a_builder_sandbox_only(tmp_path: Path) -> None:
    marker, secret = tmp_path / "marker", tmp_path / "secret"
    secret.write_text("the secret of the host")
    make_source(tmp_path / "index", _HARMFUL.format(marker=str(marker), secret=str(secret)))
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("harmful\n")
    links = f"{os.environ.get('PIP_FIND_LINKS', '')} {tmp_path / 'index'}"
    settings = load_settings(
        {
            "sandbox": {
                "packages_dir": str(tmp_path / "packages"),
                "index_environment": {**os.environ, "PIP_FIND_LINKS": links},
            }
        }
    ).sandbox

    try:
        environment = await prepare_environment(settings, "auto", project)
    except PackageError as error:
        require("package-index", available=not error.index_unreachable, why=str(error))
        raise
    async with (
        open_backend(environment.sandbox) as backend,
        backend.open_sandbox(Limits()) as sandbox,
    ):
        result = await sandbox.run(
            Command(argv=("python3", "-c", "import harmful; print('\\n'.join(harmful.REPORT))"))
        )

    lines = result.stdout.splitlines()
    assert lines[0].startswith("uid namespace"), result.stderr
    assert "network: none" in lines
    assert "the secret of the host" not in result.stdout
    assert not marker.exists()
    (pin,) = environment.sandbox.packages
    assert pin.startswith("harmful==1.0 --hash=sha256:")


async def test_a_build_that_fails_is_one_error_with_its_reason(tmp_path: Path) -> None:
    make_source(tmp_path / "index", "raise SystemExit('this does not build')")
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("harmful==1.0\n")
    links = f"{os.environ.get('PIP_FIND_LINKS', '')} {tmp_path / 'index'}"
    settings = load_settings(
        {
            "sandbox": {
                "packages_dir": str(tmp_path / "packages"),
                "index_environment": {**os.environ, "PIP_FIND_LINKS": links},
            }
        }
    ).sandbox

    with pytest.raises(PackageError) as caught:
        await prepare_environment(settings, "auto", project)

    require("package-index", available=not caught.value.index_unreachable, why=str(caught.value))
    assert "harmful 1.0 has no wheel, and its build failed" in str(caught.value)
    assert "--env off" in caught.value.hint
