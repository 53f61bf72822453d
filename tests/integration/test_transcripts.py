"""Recorded conversations with a strong model replay through the whole loop, and end as recorded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.goal import RunLimits
from tests.support.requirements import require
from tests.support.undertakings import tell

FOLDER = Path(__file__).with_name("transcripts")
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
FACTS = {"tool_calls": True, "context_tokens": 200_000, "max_output_tokens": 32_000}


def line(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded reply as a line of a scripted model."""
    calls = [{"name": name, "arguments": given} for name, given in reply.get("calls", ())]
    others = {name: value for name, value in reply.items() if name != "calls"}
    return {**others, "tool_calls": calls} if calls else others


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) >= 6


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_conversation_ends_as_recorded(tmp_path: Path, name: str) -> None:
    task = json.loads((FOLDER / f"{name}.json").read_text())
    if component := task.get("component"):
        found = shutil.which(component) is not None
        require(component, available=found, why=f"{component} is not installed")

    story = await tell(
        tmp_path,
        [line(reply) for reply in task["replies"]],
        facts=FACTS,
        files=task["files"],
        checks=(task["check"],) if task["check"] else (),
        statement=task["goal"],
        limits=RunLimits(attempts=4, check_timeout_s=60),
    )

    expected, outcome = task["expected"], story.outcome
    assert outcome.status == expected["status"], outcome.reason
    assert outcome.reason == expected.get("reason", outcome.reason)
    assert outcome.attempts == expected["attempts"]
    assert outcome.usage.calls == expected["calls"]
    assert sorted(str(change.path) for change in outcome.changes) == expected["changes"]
