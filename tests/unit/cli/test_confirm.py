"""Commands that remove something: they ask, or have been told `--yes`."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import click
import pytest

from assay.cli.main import run
from assay.cli.terminal import check_ids, confirm
from assay.contracts.errors import UsageError


@contextmanager
def a_terminal(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer)
        with os.fdopen(theirs) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            yield
    finally:
        os.close(ours)


def test_a_person_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_terminal(b"y\n", monkeypatch):
        confirm("Remove it?", yes=False)
    with a_terminal(b"n\n", monkeypatch), pytest.raises(click.Abort):
        confirm("Remove it?", yes=False)


def test_without_a_terminal_only_yes_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as stdin:  # noqa: PTH123 - a device
        monkeypatch.setattr("sys.stdin", stdin)

        with pytest.raises(UsageError, match="without a terminal") as caught:
            confirm("Remove it?", yes=False)
        confirm("Remove it?", yes=True)

    assert caught.value.hint == "add --yes"


@pytest.mark.parametrize(
    "words",
    [
        "runs --delete-older-than 0",
        "keys revoke 3f9a1c0b7d2e",
        "mcp token somebody --remove",
        "sandbox packages clean",
    ],
)
def test_every_command_that_removes_wants_yes(
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("home")))
    with open(os.devnull) as stdin:  # noqa: PTH123 - a device
        monkeypatch.setattr("sys.stdin", stdin)

        assert run(words.split()) == 2

    assert "without a terminal Assay cannot ask\nhint: add --yes\n" in capfd.readouterr().err


def test_only_what_is_there_can_be_named() -> None:
    check_ids(["a"], ["a", "b"])

    with pytest.raises(UsageError, match="'c' was left behind"):
        check_ids(["a", "c"], ["a", "b"])
