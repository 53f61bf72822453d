"""A test that was promised its surroundings fails without them, instead of being skipped."""

import pytest

from tests.support.requirements import VARIABLE, count_missing, require


def test_what_was_not_promised_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "root")

    with pytest.raises(pytest.skip.Exception, match="needs 'cgroup': no controller"):
        require("cgroup", available=False, why="no controller is mounted")


def test_what_was_promised_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "root, cgroup")

    with pytest.raises(pytest.fail.Exception, match="promises 'cgroup', but no controller"):
        require("cgroup", available=False, why="no controller is mounted")


def test_what_is_there_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")

    require("cgroup", available=True, why="unused")


def test_what_was_skipped_is_counted_by_component() -> None:
    reasons = [
        "Skipped: needs 'go': there is no go here",
        "Skipped: needs 'docker': no engine",
        "Skipped: not in a virtual environment",
        "Skipped: needs 'docker': no engine",
    ]

    assert count_missing(reasons) == "docker 2, go 1, other reasons 1"
