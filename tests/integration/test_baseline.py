"""The checks are run on the untouched files before a model is called, and what they say is used."""

import shutil
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.events import ModelReplied, Planned
from assay.contracts.goal import RunLimits
from assay.storage.run_store import RunStore
from tests.support.requirements import require
from tests.support.undertakings import SMALL, tell

TESTS = "from it import answer\n\n\ndef test_it():\n    assert answer() == 42\n"
RIGHT = "def answer():\n    return 42\n"


@pytest.mark.parametrize(
    ("checks", "message", "hint"),
    [
        (("nosuchprogram --all",), "the program 'nosuchprogram' is not in the", "--check"),
        (("cd . && nosuchprogram | cat; exit 127",), "the program 'nosuchprogram'", "--check"),
        (("pytest -q",), "does not have the package 'freezegun'", "--package freezegun"),
        (("pytest --cov=it",), "does not know the option '--cov=it'", "--package pytest-cov"),
        (("pytest it.py::test_no",), "there is no test", "correct the node ID"),
        (("pytest it.py",), "found no tests", "--tests"),
    ],
)
async def test_an_environment_that_no_change_can_repair_ends_the_run_before_a_model_is_called(
    tmp_path: Path, checks: tuple[str, ...], message: str, hint: str
) -> None:
    files = {"it.py": RIGHT, "test_it.py": "import freezegun\n" + TESTS}
    events: list[object] = []

    with pytest.raises(UsageError, match=message) as refused:
        await tell(tmp_path, ["never asked"], files=files, checks=checks, listener=events.append)

    assert hint in refused.value.hint
    assert "--baseline-timeout 0" in refused.value.hint
    assert not [event for event in events if isinstance(event, ModelReplied)]
    assert not list(RunStore(tmp_path / "state").list())


async def test_a_check_that_hangs_takes_its_own_time_only_and_the_model_is_told(
    tmp_path: Path,
) -> None:
    files = {"it.py": "while True:\n    pass\n", "test_it.py": TESTS}

    story = await tell(
        tmp_path,
        [f"```python it.py\n{RIGHT}```"],
        files=files,
        tests=("test_it.py",),
        facts=SMALL,
        limits=RunLimits(attempts=1, check_timeout_s=600, baseline_timeout_s=1),
    )

    (planned,) = story.of(Planned)
    assert "does not end within 1 s on the untouched files" in planned.baseline
    assert story.outcome.accepted, story.outcome.reason


async def test_the_cause_of_a_failed_import_is_in_the_ending(tmp_path: Path) -> None:
    files = {"it.py": "import nowhere_at_all\n", "test_it.py": TESTS}

    story = await tell(
        tmp_path,
        ["```python it.py\nimport nowhere_at_all  # still\n```"],
        files=files,
        tests=("test_it.py",),
        facts=SMALL,
        limits=RunLimits(attempts=1, check_timeout_s=60),
    )

    reason = story.outcome.reason
    assert reason.startswith("0 of 1 test pass in the best of 1 attempt; test_it.py: ")
    assert "ModuleNotFoundError: No module named 'nowhere_at_all'" in reason


async def test_a_missing_package_of_npm_is_named_with_the_setting_that_gives_it(
    tmp_path: Path,
) -> None:
    require("node", available=shutil.which("node") is not None, why="node is not on PATH")
    files = {
        "package.json": '{"dependencies": {"left-pad": "1"}}',
        "node_modules/left-pad/index.js": "module.exports = (text) => text;\n",
        "pad.test.js": "const pad = require('left-pad');\nrequire('node:test')('pads', pad);\n",
    }

    with pytest.raises(UsageError, match="does not have the npm package 'left-pad'") as refused:
        await tell(tmp_path, ["never asked"], files=files, checks=("node --test",))

    place = tmp_path / "workspace" / "node_modules"
    assert f"ASSAY_SANDBOX__READ_ONLY={place}" in refused.value.hint


async def test_a_test_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    files = {"it.py": RIGHT, "test_it.py": TESTS}

    with pytest.raises(UsageError, match="there is no test") as refused:
        await tell(tmp_path, ["never asked"], files=files, tests=("test_that.py::test_it",))

    assert "FILE.py::TEST" in refused.value.hint
