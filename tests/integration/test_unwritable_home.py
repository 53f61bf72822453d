"""Commands where nothing can be kept: one line and a hint, never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.ordinary_user import OrdinaryUser, an_ordinary_user
from tests.support.requirements import require

_SAY: Final = json.dumps({"said": [{"text": "done", "repeat": True}]})
# All in one process: starting Python is what takes time.
_SEVERAL: Final = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from assay.cli.main import run
ended = []
for words in json.loads(sys.argv[1]):
    said = io.TextIOWrapper(io.BytesIO(), write_through=True)
    complained = io.StringIO()
    with redirect_stdout(said), redirect_stderr(complained):
        code = run(words)
    ended.append([words, int(code), complained.getvalue(), said.buffer.getvalue().decode()])
print(json.dumps(ended))
"""
_READING: Final = ("runs", "sessions list", "memory list", "tools list", "models", "sandbox list")
_WRITING: Final = (
    "run goal --check true --model scripted:{say}",
    "chat hi --model scripted:{say}",
    "keys create somebody",
    "mcp token somebody",
    "bench toolchains --languages go,cpp",
)
_OTHERS: Final = (
    *("doctor", "map", "sandbox run -- true", "sandbox clean --yes", "sandbox packages list"),
    *("executor token x", "executor check", "certs make", "show x", "resume x", "replay x"),
    *("verify x", "memory stats", "memory forget x --yes", "keys list", "keys revoke x --yes"),
    *("bench list polyglot", "sessions delete x --yes", "runs --delete-older-than 0 --yes"),
)
_SERVING: Final = (
    "executor serve --port 0 --metrics-port 0",
    "mcp serve all --port 0",
)


@pytest.fixture(scope="module")
def user() -> Generator[OrdinaryUser]:
    with an_ordinary_user() as found:
        yield found


@pytest.fixture
def say(user: OrdinaryUser) -> Path:
    """A script for a model, where the ordinary user can read it."""
    path = user.home.parent / "say.json"
    path.write_text(_SAY)
    path.chmod(0o644)
    return path


def ordinarily(
    user: OrdinaryUser, say: Path, env: dict[str, str], lines: Sequence[str] = _READING + _WRITING
) -> list[list[Any]]:
    words = [line.format(say=say).split() for line in lines]
    done = user.run([str(user.python), "-B", "-c", _SEVERAL, json.dumps(words)], env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(ended: list[list[Any]], *, refused: int) -> None:
    check_words(ended)
    assert sum(code == refused for _, code, *_ in ended) >= len(_WRITING) - 1, ended


def check_words(ended: list[list[Any]]) -> None:
    for words, code, complained, output in ended:
        assert "Traceback" not in complained, (words, complained)
        assert code in {0, 2, 4}, (words, complained)
        # `bench toolchains` lists missing toolchains with the command that installs each.
        listed = words[:2] == ["bench", "toolchains"] and "not run" in output
        if code and not listed:
            told = [line for line in complained.splitlines() if line.startswith(("error", "hint"))]
            assert [line.partition(":")[0] for line in told] == ["error", "hint"], words


def test_a_home_that_cannot_be_written_costs_one_line(user: OrdinaryUser, say: Path) -> None:
    locked = user.home.parent / "locked"
    locked.mkdir(mode=0o555, exist_ok=True)

    check(ordinarily(user, say, {"HOME": str(locked)}), refused=4)


def test_a_home_that_does_not_exist_costs_one_line(user: OrdinaryUser, say: Path) -> None:
    check(ordinarily(user, say, {"HOME": str(user.home.parent / "locked" / "none")}), refused=4)


def test_a_home_that_is_a_file_costs_one_line(user: OrdinaryUser, say: Path) -> None:
    check(ordinarily(user, say, {"HOME": str(say)}), refused=4)


def test_a_server_without_a_folder_for_its_state_ends_with_one_line(
    user: OrdinaryUser, say: Path
) -> None:
    ended = ordinarily(user, say, {"ASSAY_STATE_DIR": str(say / "state")}, _SERVING)

    check_words(ended)
    assert all(code for _, code, *_ in ended), ended


@pytest.mark.slow
@pytest.mark.parametrize("home", ["locked", "locked/none", "say.json"])
def test_no_other_command_ends_in_a_traceback(user: OrdinaryUser, say: Path, home: str) -> None:
    (user.home.parent / "locked").mkdir(mode=0o555, exist_ok=True)

    check_words(ordinarily(user, say, {"HOME": str(user.home.parent / home)}, _OTHERS))


def test_a_user_without_any_home_is_told_so(user: OrdinaryUser) -> None:
    require("root", available=os.geteuid() == 0, why="only root can be somebody unknown")
    done = subprocess.run(
        [str(user.python), "-B", "-m", "assay", "runs"],
        env={"PATH": os.defpath},
        user=54321,
        group=54321,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert done.stderr.startswith("error: there is no home folder"), done.stderr
    assert "hint: set HOME" in done.stderr


def test_a_full_disk_costs_one_line(say: Path, tmp_path: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root can mount a small disk")
    words = [line.format(say=say).split() for line in (*_READING, *_WRITING)]
    with _full_disk(tmp_path / "full") as home:
        done = subprocess.run(
            [sys.executable, "-B", "-c", _SEVERAL, json.dumps(words)],
            env={"PATH": os.defpath, "HOME": str(home), "LANG": "C.UTF-8"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), refused=4)


@contextmanager
def _full_disk(folder: Path) -> Generator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    require("root", available=done.returncode == 0, why=f"no tmpfs here: {done.stderr.strip()}")
    try:
        with pytest.raises(OSError, match="No space left"), (folder / "all").open("wb") as file:
            file.write(b"x" * (1 << 20))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S607 - as mount above
