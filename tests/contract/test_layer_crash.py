"""Captures of a workspace that are killed, or that run at the same time."""

import subprocess
import sys
from pathlib import Path

import pytest

from assay.storage.layers import LayerStore
from assay.storage.read_workspace import read_workspace

CAPTURE = """
import sys
from pathlib import Path
from assay.storage.layers import LayerStore
print("ready", flush=True)
print(LayerStore(Path(sys.argv[2])).capture(Path(sys.argv[1])).digest, flush=True)
"""


@pytest.mark.parametrize("files", [0, 1, 150, 390])
def test_a_killed_capture_changes_nothing_and_leaves_nothing(tmp_path: Path, files: int) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for number in range(400):
        (folder / f"m{number}.py").write_text(f"m = {number}\n")
    before = read_workspace(folder)
    home = tmp_path / "state" / "layers"
    with subprocess.Popen(
        [sys.executable, "-c", CAPTURE, str(folder), str(tmp_path / "state")],
        stdout=subprocess.PIPE,
        text=True,
    ) as capture:
        assert capture.stdout is not None
        capture.stdout.readline()
        while capture.poll() is None and len(list(home.glob(".draft-*/files/*"))) < files:
            pass
        capture.kill()

    assert read_workspace(folder) == before
    assert LayerStore(tmp_path / "state").capture(folder) == before
    assert not list(home.glob(".draft-*"))


def test_processes_that_capture_the_same_workspace_share_a_layer(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "a.py").write_text("a = 1\n")
    home = tmp_path / "state" / "layers"
    command = [sys.executable, "-c", CAPTURE, str(folder), str(tmp_path / "state")]
    captures = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {capture.communicate()[0].split()[-1] for capture in captures}

    assert (
        digests
        == {path.name for path in home.iterdir() if len(path.name) == 64}
        == {read_workspace(folder).digest}
    )
