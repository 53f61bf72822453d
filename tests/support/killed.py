"""Kill a child at a chosen moment: before an operation that Python audits."""

import os
import signal
import sys
from collections.abc import Callable

Moment = Callable[[str, tuple[object, ...]], bool]
"""Returns whether an audit event counts as a moment."""


def is_killed(number: int, work: Callable[[], object], is_moment: Moment) -> bool:
    """Work in a child that signal 9 ends before the moment with this number; return whether."""
    child = os.fork()
    if child == 0:
        left = number

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if is_moment(event, arguments):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            work()
        except BaseException as error:  # noqa: BLE001 - reported by the exit code
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def writes_a_file(event: str, arguments: tuple[object, ...]) -> bool:
    """Count each file that is created, renamed or removed."""
    if event == "open":
        flags = arguments[2]
        return isinstance(flags, int) and bool(flags & os.O_CREAT)
    return event in {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


def starts_a_program(event: str, arguments: tuple[object, ...]) -> bool:
    """Count each program that is started."""
    del arguments
    return event == "subprocess.Popen"
