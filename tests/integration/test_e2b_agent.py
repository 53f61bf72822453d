"""What is put into a machine of E2B, as root there: programs have less rights than it."""

import base64
import io
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.execution import Limits
from assay.sandbox.e2b.vm import packed
from tests.support.requirements import require

PYTHON = "/usr/bin/python3"


@pytest.fixture
def state() -> Generator[Path]:
    require("root", available=os.getuid() == 0, why="only root has rights to give up")
    # Not below pytest's own folder, which nobody else may enter.
    folder = Path(tempfile.mkdtemp(prefix="assay-far-"))
    folder.chmod(0o755)
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(packed()))) as archive:
        archive.extractall(folder / "far")
    for name in ("app", "tmp"):
        (folder / name).mkdir()
        shutil.chown(folder / name, "nobody", "nogroup")
    yield folder
    shutil.rmtree(folder)


def frames_of(state: Path, script: str) -> tuple[str, dict[str, Any]]:
    request = {
        "workspace": str(state / "app"),
        "temporary": str(state / "tmp"),
        "state": str(state),
        "user": "nobody",
        "main_program": "",
        "cancel": str(state / "cancel"),
        "cwd": ".",
        "env": {},
        "stdin": "",
        "argv": ["sh", "-c", script],
        "limits": asdict(Limits(wall_s=10)),
    }
    text = base64.b64encode(json.dumps(request).encode()).decode()
    done = subprocess.run(
        [PYTHON, "-ESs", str(state / "far"), "run", text],
        capture_output=True,
        timeout=30,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/root", "USER": "root"},
    )
    *outputs, end = [json.loads(line) for line in done.stdout.splitlines()]
    shown = b"".join(base64.b64decode(one["data"]) for one in outputs if one["frame"] == "stdout")
    return shown.decode(), end


def test_a_program_is_not_root_and_knows_nothing_of_it(state: Path) -> None:
    shown, end = frames_of(state, 'id -u; echo "$USER $HOME"; cat /proc/$PPID/environ || echo no')

    assert shown.startswith("65534\nnobody ")
    assert "root" not in shown
    assert shown.endswith("no\n")
    assert end["report"]["ended"] == 0


def test_a_program_cannot_end_its_supervisor_nor_write_in_its_place(state: Path) -> None:
    attack = "kill -9 $PPID || echo refused; echo forged > /proc/$PPID/fd/1 || echo refused"

    shown, end = frames_of(state, attack)

    assert shown == "refused\nrefused\n"
    assert end["frame"] == "end"


def test_nothing_of_a_program_is_left(state: Path) -> None:
    shown, _ = frames_of(state, "setsid sleep 987.65 & echo started")

    assert shown == "started\n"
    left = subprocess.run(
        ["/usr/bin/pgrep", "-f", "sleep 987.65"], capture_output=True, check=False
    )
    assert left.stdout == b""
