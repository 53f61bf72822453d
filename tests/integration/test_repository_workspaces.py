"""Runs on real and on malicious repositories: what is there survives, and nothing gets out."""

import os
from pathlib import Path

import pytest

from assay.contracts.goal import RunLimits
from tests.support.repositories import a_repository, git, plant_programs
from tests.support.undertakings import tell

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
EDIT = "EDIT: {}\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\nDONE"
FIX = EDIT.format("calc.py", "    return a - b", "    return a + b")
WRONG = b"def add(a, b):\r\n    return a - b\r\n"
LIMITS = RunLimits(attempts=1, check_timeout_s=60)


def entries(folder: Path) -> dict[bytes, tuple[int, int, bytes]]:
    """Return what every entry of a folder is, without following links."""
    found: dict[bytes, tuple[int, int, bytes]] = {}
    for parent, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = os.path.join(parent, name)  # noqa: PTH118 - names of bytes
            status = os.lstat(path)
            content = b""
            if os.path.islink(path):  # noqa: PTH114 - names of bytes
                content = os.readlink(path)  # noqa: PTH115 - names of bytes
            elif name in files and status.st_size < 1 << 20:
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(folder))] = (
                status.st_mode,
                status.st_ino,
                content,
            )
    return found


@pytest.mark.timeout(300)
async def test_unusual_files_survive_a_run_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    (folder / "inner").mkdir(parents=True)
    (folder / "calc.py").write_bytes(WRONG)
    (folder / "test_calc.py").write_text(TEST)
    (folder / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (folder / "latin.txt").write_bytes(b"caf\xe9\n")
    (folder / "data.bin").write_bytes(bytes(range(256)))
    (folder / "README").write_text("upper")
    (folder / "readme").write_text("lower")
    (folder / "with\nnewline").write_text("odd")
    (folder / os.fsdecode(b"caf\xe9")).write_text("not UTF-8")
    (folder / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "link").symlink_to("crlf.txt")
    (folder / "folder-link").symlink_to("inner")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "inner" / "file.txt").write_text("in a submodule")
    a_repository(folder / "inner")
    a_repository(folder)
    assert git(folder, "ls-files", "-s", "inner").startswith("160000")
    before = entries(folder)

    story = await tell(tmp_path, ["1. fix", FIX], tests=("test_calc.py",), limits=LIMITS)

    assert story.outcome.accepted, story.outcome.reason
    assert [str(one.path) for one in story.outcome.changes] == ["calc.py"]
    assert (folder / "calc.py").read_bytes() == WRONG.replace(b"-", b"+")
    after = entries(folder)
    changed = {name for name in before if before[name] != after.get(name)}
    assert changed == {b"calc.py"}
    assert {
        name for name in after.keys() - before.keys() if not name.startswith(b".assay")
    } == set()
    assert git(folder, "status", "--porcelain") == " M calc.py"


ESCAPED = (Path("/etc/assay-was-here"), Path.home() / "assay-was-here")
MALICIOUS = """
import os, pathlib, socket, subprocess

for path in ({outside!r}, "/etc/assay-was-here", os.path.expanduser("~/assay-was-here")):
    try:
        pathlib.Path(path).write_text("escaped")
    except OSError:
        pass
subprocess.run(["git", "config", "--global", "core.fsmonitor", "/bin/true"], check=False)
"""


@pytest.mark.timeout(300)
async def test_nothing_of_a_malicious_workspace_runs_outside_a_sandbox(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("the secret of the host")
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "calc.py").write_bytes(WRONG)
    (folder / "test_calc.py").write_text(TEST)
    (folder / "conftest.py").write_text(MALICIOUS.format(outside=str(outside / "escaped")))
    (folder / "setup.py").write_text(MALICIOUS.format(outside=str(outside / "escaped")))
    scripts = dict.fromkeys(("preinstall", "prepare", "test"), f"touch '{outside}/escaped'")
    (folder / "package.json").write_text(str({"scripts": scripts}).replace("'", '"'))
    (folder / "to-a-file").symlink_to(outside / "secret.txt")
    (folder / "to-a-folder").symlink_to(outside)
    (folder / "--help").write_text("an option")
    (folder / "$(touch escaped)\n`id`").write_text("a command")
    with (folder / "sparse.bin").open("wb") as sparse:
        sparse.truncate(2 << 30)
    many = folder / "many"
    many.mkdir()
    for number in range(500):
        (many / f"{number}.txt").write_text(str(number))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "add", "--", ".", ":!sparse.bin")
    git(folder, "commit", "-qm", "first")
    mark = plant_programs(folder, tmp_path / "program")

    runs = (
        "RUN: cat to-a-file to-a-folder/secret.txt; git status; git log -p | head -3; ls -la .git"
    )
    story = await tell(
        tmp_path,
        ["1. fix", runs, FIX],
        tests=("test_calc.py",),
        limits=LIMITS,
        commit=True,
    )

    assert story.outcome.accepted, story.outcome.reason
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert not mark.exists()
    assert not [path for path in ESCAPED if path.exists()]
    large = next(one for one in story.outcome.withheld if one.path.name == "sparse.bin")
    assert large.why == "too large: 2048.0 MB"
    assert not (folder / "escaped").exists()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*.jsonl"))
    assert b"the secret of the host" not in stored
    hooks = "core.hooksPath=/dev/null"
    assert git(folder, "-c", hooks, "show", "--format=", "--name-only", "main") == "calc.py"
