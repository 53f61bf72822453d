"""`assay.run` as documentation shows it."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import assay
from assay.contracts.events import RunEnded, RunStarted
from tests.support.keyed_chat import serve_keyed
from tests.support.sources import ROOT
from tests.support.undertakings import SMALL, settings_in

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
RIGHT = "def add(a, b):\n    return a + b\n"

_PURSUE: Final = """
import asyncio, logging
import assay

logging.basicConfig(level=logging.INFO)

async def main():
    print(await assay.run("Write calc.py", workspace="site", tests=["test_calc.py"]))

asyncio.run(main())
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    script = tmp_path / "script.jsonl"
    lines = [{"facts": SMALL}, {"text": f"```python\n{RIGHT}```"}]
    script.write_text("\n".join(json.dumps(line) for line in lines))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "test_calc.py").write_text(TEST)
    return f"scripted:{script}"


async def test_a_pursuit_is_awaited_for_its_outcome(tmp_path: Path, model: str) -> None:
    outcome = await assay.run(
        "Write calc.py", workspace=tmp_path / "site", model=model, settings=settings_in(tmp_path)
    )

    assert outcome.status is assay.Status.ACCEPTED
    assert outcome.grade is assay.Grade.PROVEN
    assert (tmp_path / "site" / "calc.py").read_text() == RIGHT


@pytest.mark.slow
async def test_a_pursuit_is_watched_event_by_event(tmp_path: Path, model: str) -> None:
    pursuit = assay.run(
        "Write calc.py", workspace=tmp_path / "site", model=model, settings=settings_in(tmp_path)
    )

    events = [event async for event in pursuit]

    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].outcome.accepted


async def test_what_cannot_be_done_is_raised_to_whoever_watches(tmp_path: Path) -> None:
    pursuit = assay.run("x", workspace=tmp_path / "no", settings=settings_in(tmp_path))

    with pytest.raises(assay.UsageError, match="no folder"):
        async for _ in pursuit:
            pass


async def test_leaving_early_stops_the_run(tmp_path: Path, model: str) -> None:
    pursuit = assay.run(
        "Write calc.py", workspace=tmp_path / "site", model=model, settings=settings_in(tmp_path)
    )
    events = pursuit.__aiter__()

    first = await anext(events)
    await events.aclose()

    assert isinstance(first, RunStarted)
    assert not (tmp_path / "site" / "calc.py").exists()


@pytest.mark.slow
def test_the_env_file_of_a_workspace_counts_as_for_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "test_calc.py").write_text(TEST)
    env = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "ASSAY_API_KEY": "of-person",
        "OPENAI_API_KEY": "of-person-too",
        "ASSAY_SANDBOX__PRELOAD": "",
        "ASSAY_SANDBOX__POOL_SIZE": "0",
    }
    words = ["-m", "assay", "run", "Write calc.py", "--workspace", "site", "--attempts=1"]
    with serve_keyed({"": [f"FILE: calc.py\n```python\n{RIGHT}```\nDONE"]}) as chat:
        (folder / ".env").write_text(
            f"ASSAY_BASE_URL={chat.base_url}\nASSAY_API_KEY=of-project\n"
            "ASSAY_MODELS__DEFAULT=custom:keyed\nASSAY_AGENT__ATTEMPTS=1\n"
            "ASSAY_STATE_DIR=./stolen\nOPENAI_API_KEY=of-project-too\n"
        )
        told: list[str] = []
        for argv in (["-c", _PURSUE], [*words, "--tests", "test_calc.py"]):
            done = subprocess.run(
                [sys.executable, *argv],
                env=env,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=200,
            )
            assert done.returncode in {0, 1}, done.stderr
            told.append(done.stderr)

    assert len(chat.keys) >= len(told)
    assert set(chat.keys) == {"of-project"}
    for notice in told:
        assert "uses ASSAY_BASE_URL, ASSAY_MODELS__DEFAULT, ASSAY_AGENT__ATTEMPTS of" in notice
        assert "a project may not set ASSAY_STATE_DIR" in notice
        assert "of-p" not in notice
    assert not list(tmp_path.glob("**/stolen"))
    kept = b"".join(
        path.read_bytes() for path in (tmp_path / ".local").rglob("*") if path.is_file()
    )
    assert b"of-project" not in kept


def test_the_documented_arguments_are_those_there_are() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    source = (ROOT / "src" / "assay" / "api.py").read_text()
    [function] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    ]
    real = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}

    assert documented == real
