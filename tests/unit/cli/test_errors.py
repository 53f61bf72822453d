"""How a command line ends: what its exit code says."""

import errno
import sqlite3
from pathlib import Path

import click
import pytest

from assay.cli.errors import machine_trouble, run_command
from assay.contracts.errors import ExitCode


def closed_pipe() -> BrokenPipeError:
    """Return the error of a write that the system refuses: click looks at its number."""
    return BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (closed_pipe(), ExitCode.CLOSED_PIPE),
        (ExceptionGroup("tasks", [closed_pipe()]), ExitCode.CLOSED_PIPE),
        (KeyError("x"), ExitCode.INTERNAL),
    ],
)
def test_neither_a_closed_pipe_nor_a_crash_is_a_verdict(
    raised: Exception, code: ExitCode, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    noted: list[Exception] = []

    @click.command()
    def failing() -> None:
        raise raised

    with (tmp_path / "stdout").open("w") as stdout, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", stdout)
        assert run_command(failing, [], name="assay", on_error=noted.append) == code

    assert ("KeyError" in capfd.readouterr().err) == (noted == [raised])


def test_what_the_machine_refuses_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/state/x")

    @click.command()
    def failing() -> None:
        raise ExceptionGroup("several", [full])

    assert run_command(failing, [], name="assay") == ExitCode.INFRASTRUCTURE
    told, hint = capfd.readouterr().err.splitlines()
    assert told == "error: a file cannot be read or written: '/state/x': No space left on device"
    assert hint == "hint: check that you may read and write it, and that the disk is not full"


def test_a_database_that_cannot_be_opened_is_no_defect(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError) as missing:
        sqlite3.connect(tmp_path / "none" / "x").execute("PRAGMA user_version = 1")
    with pytest.raises(sqlite3.OperationalError) as wrong:
        sqlite3.connect(":memory:").execute("nonsense")

    assert machine_trouble(missing.value)
    assert not machine_trouble(wrong.value)


def test_a_mistake_among_refusals_stays_a_defect() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    assert not machine_trouble(ExceptionGroup("both", [full, KeyError("x")]))
    assert not machine_trouble(OSError(errno.EBADF, "Bad file descriptor"))
