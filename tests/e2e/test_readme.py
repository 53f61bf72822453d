"""What the README shows is what happens."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import assay
from tests.support.served import served
from tests.support.sources import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
BIN = Path(sys.executable).parent


def session_of(block: str) -> list[tuple[str, str]]:
    """Split a console block into commands and what they print."""
    pairs = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    return [(command, output.rstrip("\n")) for command, output in pairs]


def run_in_shell(script: str, *, cwd: Path = ROOT, **more: str) -> str:
    shown = subprocess.run(
        ["/bin/bash", "-c", script],
        cwd=cwd,
        env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": "/tmp", "NO_COLOR": "1", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return shown.stdout


ANSWER = """\
from collections import defaultdict

def group_anagrams(words):
    anagram_dict = defaultdict(list)

    for word in words:
        sorted_word = ''.join(sorted(word.lower()))
        anagram_dict[sorted_word].append(word)

    return [group for group in anagram_dict.values() if len(group) > 1]
"""
"""What the embedded model replied in the session of the README."""


def pattern_of(shown: str) -> str:
    """Turn what is shown into a pattern: `…` is anything, names and counts of tokens differ."""
    lines = []
    for line in shown.splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        pattern = re.escape(line).replace("…", ".*")
        pattern = re.sub(r"[a-z]+\\-[a-z]+\\-[0-9a-f]{4}", r"[a-z]+-[a-z]+-[0-9a-f]{4}", pattern)
        lines.append(
            re.sub(r"\d+\\ tokens\\ read,\\ \d+", r"\\d+ tokens read, \\d+", pattern) + r"\s*\n"
        )
    return "".join(lines)


def test_the_session_at_the_top_is_a_real_one(tmp_path: Path) -> None:
    facts = {"facts": {"local": True, "small": True, "tool_calls": False}}
    script = tmp_path / "script.jsonl"
    usage = {"input_tokens": 306, "output_tokens": 69}
    reply = {"text": f"```python\n{ANSWER}```", "usage": usage}
    script.write_text("\n".join(json.dumps(line) for line in (facts, reply)))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    more = {
        "ASSAY_MODELS__DEFAULT": f"scripted:{script}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }

    for command, output in session_of(BLOCKS[0][1]):
        shown = run_in_shell(command, cwd=tmp_path, **more)

        if output:
            assert re.search(pattern_of(output), shown + "\n"), shown


CELLS = (
    'planets = pd.read_csv("planets.csv")\nprint(planets["mass"].mean())',
    'planets.plot.bar(x="planet", y="mass")',
)
OVER_HTTP = "It is 18446744073709551616."
ANSWERS = ("The mean mass is 0.641 Earths.", "Here is the chart.")


def test_the_conversation_is_a_real_one(tmp_path: Path) -> None:
    (block,) = [block for _, block in BLOCKS if "assay chat --file" in block]
    (make, _), *turns = session_of(block)
    run_in_shell(make, cwd=tmp_path)

    for (command, output), cell, answer in zip(turns, CELLS, ANSWERS, strict=True):
        script = tmp_path / "script.jsonl"
        replies = ({"text": f"```python\n{cell}\n```"}, {"text": answer})
        script.write_text("\n".join(json.dumps(line) for line in replies))
        shown = run_in_shell(
            f"{command} --model scripted:{script}",
            cwd=tmp_path,
            XDG_STATE_HOME=str(tmp_path / "state"),
        )

        assert re.search(pattern_of(output), shown + "\n"), shown


def test_the_answer_over_http_is_a_real_one(tmp_path: Path) -> None:
    (block,) = [block for _, block in BLOCKS if "assay serve &" in block]
    _, (command, output) = session_of(block)
    replies = ({"text": "I compute it.\n```python\nprint(2 ** 64)\n```"}, {"text": OVER_HTTP})
    with served(tmp_path, replies) as service:
        shown = run_in_shell(command.replace("localhost:8000", service.url))

    assert shown.startswith(output.partition("…")[0])


@pytest.mark.parametrize("example", [code for language, code in BLOCKS if language == "python"])
def test_a_python_example_can_be_read_and_names_what_there_is(example: str) -> None:
    compile(example, "README.md", "exec")

    named = set(re.findall(r"\bassay\.(\w+)", example))
    assert named <= set(assay.__all__)


def test_the_python_example_runs() -> None:
    example = [code for language, code in BLOCKS if language == "python"][-1]

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
