"""The first process of an interpreter: manages its Python kernels and kills what cells leave.

A Python kernel holds the variables of one branch and is stopped between cells. For each cell it
forks. If the fork reaches the end of the cell, it becomes the new Python kernel. The state of each
branch is here, and reports about it go to the supervisor.
"""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from assay.sandbox.native.guest import messages, python_kernel
from assay.sandbox.native.guest.messages import ConnectionLostError, Listener, Message
from assay.sandbox.native.guest.process_tree import open_relatives, pause, send_signal, session_of
from assay.sandbox.native.kernel import libc


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The report of a cell about its own end."""

    pid: int
    code: int


@dataclass(slots=True, kw_only=True)
class Branch:
    """One branch: a Python kernel and its running cell."""

    number: int
    reports: int
    post: Listener
    head: int = 0
    """The pid of the Python kernel; 0 after its death."""
    busy: bool = False
    cell: int = 0
    """The pid of the running cell; 0 before it is forked."""
    cell_post: Listener | None = None
    asks: bool = False
    """Whether the supervisor must confirm before the cell is kept."""
    done: Done | None = None
    """The end report of a stopped cell that waits for the supervisor's decision."""
    doomed: float | None = None
    """When to stop waiting for a cell that has to end."""
    branches: list["Branch"] = field(default_factory=list["Branch"])
    """Requested branches that are not forked yet."""
    unwanted: bool = False
    """Whether to close this branch as soon as it is forked."""


def report(line: Branch, word: Message) -> None:
    """Report to the supervisor, if it is still there."""
    with suppress(OSError):
        os.write(line.reports, json.dumps(word).encode() + b"\n")


_ANSWER_WITHIN_S: Final = 5.0
_STOP_WITHIN_S: Final = 2.0
_ERRNOS: Final = 4096
_LARGEST_STATUS: Final = 0xFFFF


def keep(go: int, settle: Callable[[], None]) -> NoReturn:
    """Serve until the supervisor is gone. `settle` confines the first Python kernel."""
    try:
        manager = _KernelManager(socket.socket(fileno=go), settle)
        while True:
            manager.serve_one()
    finally:
        os._exit(1)


class _KernelManager:
    def __init__(self, orders: socket.socket, settle: Callable[[], None]) -> None:
        self._orders = orders
        self._settle = settle
        self._pid = os.getpid()
        self._lines: dict[int, Branch] = {}
        self._talks: dict[int, Callable[[], None]] = {orders.fileno(): self._obey}
        self._dead: list[int] = []
        self._relatives = open_relatives()
        self._relatives.rank(self._pid, 0)
        libc.set_dumpable(dumpable=False)
        # A cell that signals all processes must not reach this process or a waiting Python kernel.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})
        self._bell, self._rope = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._talks[self._bell] = self._hear_bell
        signal.signal(signal.SIGCHLD, _only_ring)
        signal.set_wakeup_fd(self._rope, warn_on_full_buffer=False)
        self._events = select.poll()
        for descriptor in self._talks:
            self._events.register(descriptor, select.POLLIN)

    def serve_one(self) -> None:
        for descriptor, _ in self._events.poll(self._timeout_ms()):
            # An earlier message may have closed this socket.
            if descriptor in self._talks:
                self._talks[descriptor]()
        self._look_at_the_dead()
        for line in [*self._lines.values()]:
            if line.doomed is not None and time.monotonic() > line.doomed:
                self._lose(line, "it does not answer")

    def _timeout_ms(self) -> float | None:
        ends = [line.doomed for line in self._lines.values() if line.doomed is not None]
        return max(0.0, min(ends) - time.monotonic()) * 1000 if ends else None

    def _hear_bell(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._bell, messages.LARGEST_UNTRUSTED)
        self._reap()

    def _obey(self) -> None:
        try:
            order, received = messages.receive(self._orders)
        except (ConnectionLostError, OSError):
            os._exit(0)
        line = self._lines.get(order["line"])
        if order["do"] == "open":
            self._open(order["line"], received)
        elif line is None:
            self._forgo(order["line"])
            _close(received)
        elif order["do"] == "run":
            self._run(line, order)
        elif order["do"] == "branch":
            self._branch(line, order["new"], received)
        elif order["do"] == "keep":
            self._keep_if_there(line)
        elif order["do"] == "end":
            self._end_cell(line)
        elif order["do"] == "close":
            self._forget(line, {"closed": True})

    def _forgo(self, number: int) -> None:
        """Mark a branch that is not forked yet as unwanted."""
        for line in self._lines.values():
            for branch in line.branches:
                branch.unwanted = branch.unwanted or branch.number == number

    def _open(self, number: int, received: list[int]) -> None:
        stdout, stderr, answers, reports = received
        ours, theirs = socket.socketpair()
        head = os.fork()
        if head == 0:
            # Only the kernel manager may report how a cell ended, so only it keeps this descriptor.
            os.close(reports)
            ours.close()
            self._become_head(python_kernel.BranchOutputs(stdout, stderr, answers), theirs)
        theirs.close()
        _close([stdout, stderr, answers])
        line = Branch(number=number, reports=reports, post=Listener(ours), head=head)
        self._lines[number] = line
        self._listen_to_head(line)

    def _become_head(self, outputs: python_kernel.BranchOutputs, theirs: socket.socket) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._orders.close()
            _close([self._bell, self._rope])
            libc.set_dumpable(dumpable=True)
            self._settle()
            python_kernel.live(theirs, outputs)
        except BaseException as error:  # noqa: BLE001 - the child of a fork must not return
            with suppress(OSError):
                messages.send(theirs, {"failed": repr(error)[:1000]})
        os._exit(1)

    def _run(self, line: Branch, order: Message) -> None:
        ours, theirs = socket.socketpair()
        line.busy, line.cell, line.doomed = True, 0, None
        line.asks, line.done = order["ask"], None
        line.cell_post = Listener(ours)
        # Orphans of a cell come to this process. If cells of several branches could be running,
        # each cell keeps its own where the kernel supports that.
        word = {
            "do": "run",
            "source": order["source"],
            "number": order["number"],
            "adopt": self._relatives.adopts and len(self._lines) > 1,
        }
        self._tell(line, word, theirs.fileno())
        theirs.close()

    def _branch(self, line: Branch, number: int, received: list[int]) -> None:
        stdout, stderr, answers, reports = received
        ours, theirs = socket.socketpair()
        line.branches.append(Branch(number=number, reports=reports, post=Listener(ours)))
        self._tell(line, {"do": "branch"}, theirs.fileno(), stdout, stderr, answers)
        theirs.close()
        _close([stdout, stderr, answers])

    def _tell(self, line: Branch, word: Message, *descriptors: int) -> None:
        send_signal(line.head, signal.SIGCONT)
        with suppress(OSError):  # the death of a Python kernel is noticed separately
            messages.send(line.post.end, word, descriptors)

    def _end_cell(self, line: Branch) -> None:
        if not line.busy:
            return
        line.doomed = time.monotonic() + _ANSWER_WITHIN_S
        if line.cell:
            # A Python kernel that its cell has stopped could not report the end.
            send_signal(line.head, signal.SIGCONT)
            self._clear(line.cell)

    def _listen_to_head(self, line: Branch) -> None:
        self._listen(line.post, lambda: self._hear_head(line))

    def _listen(self, post: Listener, hear: Callable[[], None]) -> None:
        self._talks[post.end.fileno()] = hear
        self._events.register(post.end, select.POLLIN)

    def _hear_head(self, line: Branch) -> None:
        try:
            for message in line.post.hear():
                self._heed_head(line, message)
        except ConnectionLostError as error:
            self._lose(line, str(error))

    def _heed_head(self, line: Branch, message: Message) -> None:
        match message:
            case {"ready": True} if not line.busy:
                self._rest(line)
                report(line, {"ready": True})
            case {"forked": int(pid)}:
                self._heed_birth(line, pid)
            case {"refused": int(number)} if not 0 <= number < _ERRNOS:
                raise ConnectionLostError("of an error that does not exist")
            case {"refused": int(number)} if line.branches:
                branch = line.branches.pop(0)
                self._rest(line)
                report(branch, {"gone": f"the kernel refused: {os.strerror(number)}"})
                self._hang_up(branch)
            case {"refused": int(number)} if line.busy and not line.cell:
                self._drop_cell(line)
                self._rest(line)
                report(line, {"over": True, "refused": number})
            case {"ended": int(status)} if line.cell and _is_an_end(status):
                self._clear(line.cell)
                self._drop_cell(line)
                self._rest(line)
                report(line, {"over": True, "kept": False, "ended": status})
            case {"failed": str(why)}:
                self._lose(line, why)
            case _:
                raise ConnectionLostError("what no Python kernel says")

    def _heed_birth(self, line: Branch, pid: int) -> None:
        # The check fails if the process is dead and reaped by now.
        own = self._relatives.is_child(pid, line.head, self._pid, 0)
        if not own or pid in self._known():
            raise ConnectionLostError("of a process that is not its own")
        if line.branches:
            branch = line.branches.pop(0)
            branch.head = pid
            self._lines[branch.number] = branch
            self._listen_to_head(branch)
            self._rest(line)
            if branch.unwanted:
                self._forget(branch, {"closed": True})
            return
        if line.cell_post is None or line.cell:
            raise ConnectionLostError("of a cell that was not requested")
        line.cell = pid
        self._relatives.rank(pid, 1000)
        post = line.cell_post
        self._listen(post, lambda: self._hear_cell(line, post))
        if line.doomed is not None:
            self._clear(pid)

    def _hear_cell(self, line: Branch, post: Listener) -> None:
        try:
            for message in post.hear():
                self._heed_cell(line, post, message)
        except ConnectionLostError:
            # The cell has closed its socket; its Python kernel reports how it ends.
            self._unlisten(post)

    def _heed_cell(self, line: Branch, post: Listener, message: Message) -> None:
        match message:
            case {"done": int(code), "pid": int(pid)} if post is line.cell_post:
                if line.doomed is not None or line.done is not None:
                    # Too late: its Python kernel reports that it was killed, or it reported before.
                    return
                own = self._relatives.is_child(pid, line.cell) and pid not in self._known()
                if pid != line.cell and not own:
                    raise ConnectionLostError("of a process that is not its own")
                self._heed_end(line, post, Done(pid=pid, code=code & 0xFF))
            case _:
                raise ConnectionLostError("what no cell says")

    def _heed_end(self, line: Branch, post: Listener, done: Done) -> None:
        if line.asks:
            line.done = done
            self._stop(done.pid)
            report(line, {"done": True})
        else:
            self._keep_cell(line, post, done)

    def _keep_if_there(self, line: Branch) -> None:
        # It may have been killed while it was stopped.
        if line.done is not None and line.cell_post is not None and line.doomed is None:
            self._keep_cell(line, line.cell_post, line.done)

    def _keep_cell(self, line: Branch, post: Listener, done: Done) -> None:
        """Make a finished cell the branch's Python kernel."""
        former, cell, pid = line.head, line.cell, done.pid
        self._unlisten(post)
        self._hang_up_post(line.post)
        line.head, line.post, line.cell_post, line.cell = pid, post, None, 0
        line.busy, line.doomed, line.done = False, None, None
        self._listen_to_head(line)
        self._stop(pid)
        self._clear(*([] if pid == cell else [cell]), below=(pid,), spare=former)
        self._relatives.rank(pid, 0)
        report(line, {"over": True, "kept": True, "ended": done.code << 8})
        # Killed last: its exit takes time, and no process has to wait for it.
        send_signal(former, signal.SIGKILL)

    def _known(self) -> set[int]:
        heads_and_cells = {pid for line in self._lines.values() for pid in (line.head, line.cell)}
        return heads_and_cells - {0}

    def _clear(self, *roots: int, below: tuple[int, ...] = (), spare: int = 0) -> None:
        """Kill `roots` with all their descendants, and all processes whose parents are gone."""
        for look in range(1 << 30):
            known = self._known() - set(roots) | {spare}
            alone = not any(line.busy and line.cell not in roots for line in self._lines.values())
            victims = self._relatives.find(
                roots, below, known, alone=alone, newborn=self._forking_sessions()
            )
            if not victims:
                return
            # Stopped first, so that no process forks while the others are killed.
            for sent in (signal.SIGSTOP, signal.SIGKILL):
                for pid in victims:
                    send_signal(pid, sent)
            self._reap()
            pause(look)

    def _forking_sessions(self) -> set[int]:
        """Return the sessions in which a branch is being forked that is not known yet.

        Every cell has its own session, so no process that a cell has started is in them.
        """
        return {session_of(line.head) for line in self._lines.values() if line.branches}

    def _rest(self, line: Branch) -> None:
        # A client that did not wait for a branch may have started a cell by now.
        if not line.busy:
            self._stop(line.head)
        self._relatives.rank(line.head, 0)

    def _stop(self, pid: int) -> None:
        """Stop a Python kernel until it is needed, so that none of its code runs between cells."""
        send_signal(pid, signal.SIGSTOP)
        until = time.monotonic() + _STOP_WITHIN_S
        for look in range(1 << 30):
            if not pid or self._relatives.has_stopped(pid) or time.monotonic() > until:
                return
            pause(look)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._dead.append(pid)

    def _look_at_the_dead(self) -> None:
        while self._dead:
            pid = self._dead.pop()
            for line in [*self._lines.values()]:
                if pid == line.head:
                    line.head = 0
                    if not line.cell:
                        self._lose(line, "its process is dead")
                elif pid == line.cell:
                    # Its Python kernel is dead too, or it would have reported the end.
                    self._lose(line, "its processes are dead")

    def _lose(self, line: Branch, why: str) -> None:
        self._forget(line, {"gone": why})

    def _forget(self, line: Branch, last_word: Message) -> None:
        if self._lines.pop(line.number, None) is None:
            return
        self._clear(*(pid for pid in (line.head, line.cell) if pid))
        report(line, last_word)
        self._drop_cell(line)
        for branch in line.branches:
            self._hang_up(branch)
        self._hang_up(line)

    def _drop_cell(self, line: Branch) -> None:
        if line.cell_post is not None:
            self._hang_up_post(line.cell_post)
        line.cell_post, line.cell, line.busy = None, 0, False
        line.doomed, line.done = None, None

    def _hang_up(self, line: Branch) -> None:
        self._hang_up_post(line.post)
        os.close(line.reports)

    def _hang_up_post(self, post: Listener) -> None:
        self._unlisten(post)
        post.end.close()

    def _unlisten(self, post: Listener) -> None:
        if self._talks.pop(post.end.fileno(), None) is not None:
            self._events.unregister(post.end)


def _is_an_end(status: int) -> bool:
    """Whether this is a possible wait status of an ended process."""
    return 0 <= status <= _LARGEST_STATUS and (os.WIFEXITED(status) or os.WIFSIGNALED(status))


def _only_ring(number: int, frame: Any) -> None:
    """Do nothing: with a handler, the signal writes to the wakeup pipe."""


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
