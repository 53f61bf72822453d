"""What the README shows is what happens."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent


def session_of(block: str) -> list[tuple[str, str]]:
    """Split a console block into commands and what they print."""
    pairs = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    return [(command, output.rstrip("\n")) for command, output in pairs]


def run_in_shell(script: str) -> str:
    shown = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=ROOT,
        env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": "/tmp"},  # noqa: S108 - nothing is written there
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return shown.stdout


def test_the_session_at_the_top_is_a_real_one() -> None:
    session = session_of(BLOCKS[0][1])
    # `$?` is that of the command before, so they run in one shell with a line between them.
    script = "\n".join(f"{command}\nstatus=$?; echo ----; (exit $status)" for command, _ in session)

    shown = [part.strip("\n") for part in run_in_shell(script).split("----\n")]

    assert shown[: len(session)] == [output for _, output in session]


def test_the_python_example_runs() -> None:
    [example] = [code for language, code in BLOCKS if language == "python"]

    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("42\n completed ")


def commands_named() -> list[str]:
    lines = [
        command
        for language, block in BLOCKS
        if language == "console"
        for command, _ in session_of(block)
    ]
    return sorted({line.partition("#")[0].strip() for line in lines})


@pytest.mark.parametrize("command", [line for line in commands_named() if line.startswith("assay")])
def test_a_command_that_is_named_exists(command: str) -> None:
    words = [word for word in shlex.split(command)[1:3] if re.fullmatch(r"[a-z]+", word)]

    assert run_in_shell(shlex.join(["assay", *words, "--help"])).startswith("Usage: assay")


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_commands_for_set_up_exist(target: str) -> None:
    assert f"make {target}" in commands_named()
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
