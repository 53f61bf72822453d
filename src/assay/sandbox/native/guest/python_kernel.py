"""The process that holds an interpreter's variables; forks for each cell and each branch.

It runs the user's code in its forks, and a fork then replaces it. No other process may trust it;
`kernel_manager.py` supervises it.
"""

import errno
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from assay.sandbox.native.guest import messages
from assay.sandbox.native.guest.cell_code import CellCode
from assay.sandbox.native.guest.display import Display
from assay.sandbox.native.kernel import libc

_CANNOT_SPEAK: Final = 70
_NEVER: Final = 3600.0
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_ALL_SIGNALS: Final = signal.valid_signals()
_fork, _leave, _wait = os.fork, os._exit, os.waitpid


class Outlets(NamedTuple):
    """The output descriptors of a branch: its streams and its rich output."""

    stdout: int
    stderr: int
    answers: int


def live(line: socket.socket, outlets: Outlets) -> NoReturn:
    """Serve the kernel manager until it is gone; each kept cell continues in its own process."""
    head = _Kernel(line, outlets)
    head.tell({"ready": True})
    while True:
        head.obey()


class _Kernel:
    def __init__(self, line: socket.socket, outlets: Outlets) -> None:
        self._line = line
        self._answers = -1
        self._shower = Display()
        self._code = CellCode(self._shower)
        self._signals: Iterable[int] = ()
        """The signals that the last cell has blocked."""
        self._take(outlets)

    def tell(self, word: messages.Message) -> None:
        messages.send(self._line, word)

    def obey(self) -> None:
        try:
            order, received = messages.receive(self._line)
        except messages.TalkError:
            _leave(0)
        _reap()
        try:
            if order["do"] == "run":
                self._run(order, received)
            else:
                self._branch(received)
        except OSError as error:
            self.tell({"refused": error.errno or 0})
        finally:
            for descriptor in received:
                with suppress(OSError):
                    os.close(descriptor)

    def _run(self, order: messages.Message, received: list[int]) -> None:
        chance = _remember_chance()
        cell = _fork()
        if cell == 0:
            self._move_to(received.pop())
            _restore_chance(chance)
            self._be_cell(order)
            return
        self.tell({"forked": cell})
        _, status = _wait(cell, 0)
        self.tell({"ended": status})

    def _be_cell(self, order: messages.Message) -> None:
        """Run the cell and become the Python kernel, or exit."""
        os.setsid()
        if order["adopt"]:
            libc.adopt_orphans()
        self._shower.begin(self._answers)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._signals)
        code = self._code.run(order["number"], order["source"])
        self._signals = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
        try:
            self._shower.end()
            for timer in _TIMERS:
                signal.setitimer(timer, 0)
            if order["adopt"]:
                libc.adopt_orphans(adopt=False)
            self._leave_threads_behind()
            self.tell({"done": code, "pid": os.getpid()})
        except OSError:
            _complain("the cell closed what the interpreter speaks on: its variables are lost")
            _leave(_CANNOT_SPEAK)

    def _leave_threads_behind(self) -> None:
        """Continue in a fork if there are other threads, because threads do not survive a fork."""
        if _count_threads() == 1:
            return
        chance = _remember_chance()
        if _fork() != 0:
            # Until the kernel manager kills this process with its threads.
            signal.sigtimedwait((), _NEVER)
            _leave(_CANNOT_SPEAK)
        _restore_chance(chance)

    def _branch(self, received: list[int]) -> None:
        chance = _remember_chance()
        hears, tells = os.pipe()
        between = _fork()
        if between == 0:
            branch = _try_fork()
            if branch != 0:
                # Exits immediately, so that the branch is reparented to the kernel manager.
                os.write(tells, b"%d" % branch)
                _leave(0)
            self._move_to(received.pop(0))
            self._take(Outlets(*received))
            received[:] = [hears, tells]
            _restore_chance(chance)
            self.tell({"ready": True})
            return
        os.close(tells)
        _wait(between, 0)
        born = int(os.read(hears, 32) or b"-1")
        os.close(hears)
        if born < 0:
            raise BlockingIOError(errno.EAGAIN, "no process for a branch")
        self.tell({"forked": born})

    def _move_to(self, line: int) -> None:
        self._line.close()
        self._line = socket.socket(fileno=line)

    def _take(self, outlets: Outlets) -> None:
        os.dup2(outlets.stdout, 1)
        os.dup2(outlets.stderr, 2)
        os.close(outlets.stdout)
        os.close(outlets.stderr)
        if self._answers >= 0:
            os.close(self._answers)
        self._answers = outlets.answers


def _try_fork() -> int:
    try:
        return _fork()
    except OSError:
        return -1


def _reap() -> None:
    """Reap processes of earlier cells that the kernel manager has killed."""
    with suppress(ChildProcessError):
        while _wait(-1, os.WNOHANG)[0] != 0:
            pass


def _count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        # Not visible without a pid namespace; threads of native libraries are missed then.
        return threading.active_count()


def _remember_chance() -> object:
    """Return the state of `random`: Python reseeds it in a fork, but a cell expects it to go on."""
    module = sys.modules.get("random")
    return None if module is None else module.getstate()


def _restore_chance(state: object) -> None:
    module = sys.modules.get("random")
    if module is not None and state is not None:
        module.setstate(state)


def _complain(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"assay: {text}\n".encode())
