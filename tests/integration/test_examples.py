"""The goals in `examples/goals` ask for something: their tests fail on the untouched workspace."""

from pathlib import Path

import pytest

from assay.agent.target_files import find_targets
from assay.contracts.execution import Limits
from assay.storage.read_workspace import read_workspace
from assay.verify.discovery import checks_for, find_tests
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier
from assay.wiring import open_backend
from tests.support.sources import ROOT
from tests.support.undertakings import settings_in

GOALS = sorted(path.parent for path in (ROOT / "examples" / "goals").glob("*/goal.md"))


def test_there_are_goals_of_every_kind() -> None:
    names = {goal.name for goal in GOALS}

    assert len(names) >= 10
    assert {"bank", "sales_chart", "fix_search"} <= names


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.name)
async def test_a_goal_is_not_met_yet(goal: Path, tmp_path: Path) -> None:
    tree = read_workspace(goal / "workspace")
    tests = find_tests(tree)
    case = VerificationSpec(pristine=tree, checks=checks_for(tests, tree), protected=tests)

    async with open_backend(settings_in(tmp_path).sandbox) as backend:
        verifier = Verifier(backend, Limits(memory_mb=1024, processes=128))
        (observation,) = await verifier.run_checks(case, tree)

    assert not observation.report.passed
    assert not observation.findings


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.name)
def test_the_file_to_write_is_found(goal: Path) -> None:
    tree = read_workspace(goal / "workspace")
    statement = (goal / "goal.md").read_text()

    tests = find_tests(tree)

    targets = find_targets(statement, tree, tests=tests, protected=tests, allowed=(), guess=True)

    assert len(targets) == 1
    assert f"`{targets[0]}`" in statement
