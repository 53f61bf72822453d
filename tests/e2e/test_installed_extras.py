"""The wheel in clean environments: with no extra, with each one, and with all of them."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.support.requirements import require
from tests.support.sources import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_UV: Final = str(Path(sys.executable).with_name("uv"))
_PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_EXTRAS: Final = sorted(_PROJECT["optional-dependencies"])
# With everything that it needs, it ends before any model is asked.
_RUN: Final = ("run", "a goal", "--model", "local", "--tests", "not-there.py")
_COMMANDS: Final = (
    ("--help",),
    ("--version",),
    ("doctor",),
    ("executor", "check"),
    _RUN,
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    alone = ("--quiet", "--wheel", "--offline", "--no-build-isolation")
    python = f"--python={sys.executable}"
    subprocess.run([_UV, "build", *alone, python, f"--out-dir={folder}", str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.parametrize("extras", ["", "agent,local", *_EXTRAS])
def test_commands_work_in_a_clean_environment(extras: str, wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    _install(environment, f"{_PROJECT['name']}[{extras}] @ {wheel.as_uri()}")

    done = _carry_out(environment, tmp_path)

    for words, (code, said, complained) in done.items():
        assert "Traceback" not in said + complained, (words, complained)
        assert code in {0, 2, 4}, (words, complained)
    assert done["--help",][0] == done["--version",][0] == 0
    assert "sandbox" in done["doctor",][1]
    assert _asked_for(done["executor", "check"]) == _lacking(extras, "executor")
    assert _asked_for(done[_RUN]) == _lacking(extras, "agent", "local")
    shutil.rmtree(environment)


def _install(environment: Path, requirement: str) -> None:
    """Install in the versions of the lock: from what uv has kept, from the index, or by pip."""
    subprocess.run(
        [_UV, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True
    )
    python = str(environment / "bin" / "python")
    lock = str(ROOT / "requirements.lock")
    wanted = ("--quiet", "--constraint", lock, requirement)
    pinned = _constraints(environment, lock)
    ways = (
        (_UV, "pip", "install", "--python", python, "--offline", *wanted),
        (_UV, "pip", "install", "--python", python, *wanted),
        ("python3", "-m", "pip", "--python", python, "install", "-qc", pinned, requirement),
    )
    tried = [subprocess.run(ways[0], capture_output=True, text=True, check=False)]
    for way in ways[1:]:
        if tried[-1].returncode == 0:
            return
        tried.append(subprocess.run(way, capture_output=True, text=True, check=False))
    why = "; ".join(each.stderr.strip()[-300:] for each in tried)
    require("package-index", available=tried[-1].returncode == 0, why=why)


def _constraints(environment: Path, lock: str) -> str:
    """Write the lock without hashes, which pip would demand of the wheel under test as well."""
    path = environment / "constraints.txt"
    lines = [line.rstrip(" \\") for line in Path(lock).read_text().splitlines()]
    path.write_text("\n".join(line for line in lines if "--hash" not in line))
    return str(path)


_Done = tuple[int, str, str]


def _carry_out(environment: Path, home: Path) -> dict[tuple[str, ...], _Done]:
    """Run all commands at the same time."""
    env = {"PATH": os.defpath, "HOME": str(home), "LANG": "C.UTF-8"}
    running = {
        words: subprocess.Popen(
            [str(environment / "bin" / "assay"), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home,
            env=env,
        )
        for words in _COMMANDS
    }
    done: dict[tuple[str, ...], _Done] = {}
    for words, process in running.items():
        said, complained = process.communicate(timeout=300)
        done[words] = (process.returncode, said, complained)
    return done


def _lacking(extras: str, *needed: str) -> list[str]:
    return [] if extras == "all" else [each for each in needed if each not in extras.split(",")]


def _asked_for(done: _Done) -> list[str]:
    """Return the extras that a command wants to be installed."""
    found = re.search(r"pip install 'assay-agent\[(.*)\]'", done[2])
    return found[1].split(",") if found else []
