"""`assay.pursue` as documentation shows it."""

import ast
import json
import re
from pathlib import Path

import pytest

import assay
from assay.contracts.events import RunEnded, RunStarted
from tests.support.sources import ROOT
from tests.support.undertakings import SMALL, settings_in

TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
RIGHT = "def add(a, b):\n    return a + b\n"


@pytest.fixture
def model(tmp_path: Path) -> str:
    script = tmp_path / "script.jsonl"
    lines = [{"facts": SMALL}, {"text": f"```python\n{RIGHT}```"}]
    script.write_text("\n".join(json.dumps(line) for line in lines))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "test_calc.py").write_text(TEST)
    return f"scripted:{script}"


async def test_a_pursuit_is_awaited_for_its_outcome(tmp_path: Path, model: str) -> None:
    outcome = await assay.pursue(
        "Write calc.py", workspace=tmp_path / "site", model=model, settings=settings_in(tmp_path)
    )

    assert outcome.status is assay.Status.ACCEPTED
    assert outcome.grade is assay.Grade.PROVEN
    assert (tmp_path / "site" / "calc.py").read_text() == RIGHT


@pytest.mark.slow
async def test_a_pursuit_is_watched_event_by_event(tmp_path: Path, model: str) -> None:
    pursuit = assay.pursue(
        "Write calc.py", workspace=tmp_path / "site", model=model, settings=settings_in(tmp_path)
    )

    events = [event async for event in pursuit]

    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].outcome.accepted


async def test_what_cannot_be_done_is_raised_to_whoever_watches(tmp_path: Path) -> None:
    pursuit = assay.pursue("x", workspace=tmp_path / "no", settings=settings_in(tmp_path))

    with pytest.raises(assay.UsageError, match="no folder"):
        async for _ in pursuit:
            pass


async def test_leaving_early_stops_the_run(tmp_path: Path, model: str) -> None:
    pursuit = assay.pursue(
        "Write calc.py", workspace=tmp_path / "site", model=model, settings=settings_in(tmp_path)
    )
    events = pursuit.__aiter__()

    first = await anext(events)
    await events.aclose()

    assert isinstance(first, RunStarted)
    assert not (tmp_path / "site" / "calc.py").exists()


def test_the_documented_arguments_are_those_there_are() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    source = (ROOT / "src" / "assay" / "undertaking" / "api.py").read_text()
    [function] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "pursue"
    ]
    real = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}

    assert documented == real
