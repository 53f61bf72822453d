import errno
import os
import signal
import sys

import pytest

from assay.sandbox.native.host.jail import may_be_seen, wait_status


def _ended(code: str) -> tuple[int, int]:
    """Start a program and wait until it is dead and not buried; returns its pid, how it ended."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seen = wait_status(pid)
    assert seen is not None
    return seen, os.waitpid(pid, 0)[1]


def test_the_exit_code_is_seen_before_anyone_has_waited() -> None:
    seen, told = _ended("raise SystemExit(7)")
    assert seen == told
    assert os.waitstatus_to_exitcode(seen) == 7


def test_a_signal_is_seen_too() -> None:
    seen, told = _ended("import os; os.kill(os.getpid(), 9)")
    assert seen == told
    assert os.waitstatus_to_exitcode(seen) == -signal.SIGKILL


def test_a_process_that_runs_has_not_ended() -> None:
    assert wait_status(os.getpid()) is None


def test_nobody_has_not_ended_and_cannot_be_seen() -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(pid, 0)
    assert wait_status(pid) is None
    assert not may_be_seen(pid)


def test_a_process_that_goes_while_it_is_looked_at_has_not_ended_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def go(*_: object) -> int:
        raise ProcessLookupError(errno.ESRCH, "no such process")

    monkeypatch.setattr(os, "open", go)
    assert wait_status(1) is None
    assert not may_be_seen(1)


def test_ones_own_process_can_be_seen() -> None:
    assert may_be_seen(os.getpid())
