"""Real processes to be looked at from outside."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NoReturn

from assay.sandbox.native.kernel import libc


@contextmanager
def a_child(prepare: Callable[[], object] = lambda: None) -> Generator[int]:
    """A process that has done something and now waits; killed at the end, if it still lives.

    Raises:
        ChildProcessError: If it could not do that.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _wait_after(prepare, writer)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as report:
            if report.read(1) != b"+":
                raise ChildProcessError("the child could not prepare itself")
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _wait_after(prepare: Callable[[], object], writer: int) -> NoReturn:
    try:
        prepare()
        os.write(writer, b"+")
        os.close(writer)
        while True:
            signal.pause()
    finally:
        os._exit(1)


def have_a_child(prepare: Callable[[], object] = lambda: None) -> None:
    """Start a process that does something and waits for as long as the caller lives.

    That is the calling thread: the kernel counts the end of a thread as that of a parent.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        libc.die_with_parent(signal.SIGKILL)
        _wait_after(prepare, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as report:
        if report.read(1) != b"+":
            raise ChildProcessError("the grandchild could not prepare itself")


def a_zombie() -> int:
    """A process that has ended and was not waited for; whoever asks waits for it."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child
