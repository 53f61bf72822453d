"""Performs a few system calls for a program, in the tier without namespaces.

First, changes of modes and times of files, inside the program's own workspace only.

Landlock does not check these changes, so without namespaces a program could make them to every file
of its user. The kernel therefore suspends the calls and asks PID 1 of the execution. PID 1 looks up
the file itself and changes it only if it is in the workspace. It reads the program's memory once
and holds the file by a descriptor, so nothing can be swapped in between.

Second, the list of a process's own descriptors, `/proc/self/fd`. No Landlock rule can allow it. A
rule for `/proc` shows the user's other processes too, and a rule for one process does not cover its
children. PID 1 opens the folder and passes it on. Landlock blocks every path from there.
"""

import _thread
import ctypes
import errno
import fcntl
import json
import os
import re
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from assay.sandbox.native.kernel import syscalls
from assay.sandbox.native.kernel.seccomp import PreparedFilter, build_asking_filter
from assay.sandbox.native.kernel.seccomp_policy import Condition

MEDIATED: Final = ("chmod", "fchmod", "fchmodat", "utimensat")
_FLAGS_AT: Final = {"open": 1, "openat": 2}
"""Calls that open a folder, and the index of their flags argument."""
_TEMPORARY_FILE: Final = 0o20000000
"""The bit of O_TMPFILE that O_DIRECTORY does not have."""


def _opens_a_folder(argument: int) -> Condition:
    """Match the flags of `opendir`. Programs that walk trees add O_NOFOLLOW and do not match."""
    others = os.O_ACCMODE | os.O_CREAT | os.O_NOFOLLOW | os.O_PATH | _TEMPORARY_FILE
    return Condition(
        argument=argument, mask=os.O_DIRECTORY | others, values=frozenset({os.O_DIRECTORY})
    )


FOLDERS_OPENED: Final[Mapping[str, Condition]] = {
    name: _opens_a_folder(argument) for name, argument in _FLAGS_AT.items()
}
"""Calls that are suspended under a condition."""

_OWN_DESCRIPTORS: Final = re.compile(rb"(?:/dev/fd|/proc/(?:self|thread-self|(\d{1,10}))/fd)/*")

_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_STILL_WAITING: Final = 0x40082102
_ADD_DESCRIPTOR: Final = 0x40182103
_QUESTION: Final = struct.Struct("=QII iIQ 6Q")
"""Id, thread and flags of the request; then call number, architecture, instruction, arguments."""
_ANSWER: Final = struct.Struct("=QqiI")
_NUMBER: Final = struct.Struct("=Q")
_ADDITION: Final = struct.Struct("=QIIII")
"""Id of the request, flags, our descriptor, requested number or 0, the new descriptor's flags."""
_AS_THE_ANSWER: Final = 2
_LET_THE_KERNEL: Final = 1

_CURRENT_FOLDER: Final = -100
_NOT_THROUGH_LINKS: Final = 0x100
_FOLDER_ITSELF: Final = 0x1000
_SET_ID_BITS: Final = 0o6000
_LONGEST_PATH: Final = 4096
_PAGE: Final = 4096
_TWO_TIMES: Final = 32
_LARGEST_MESSAGE: Final = 1 << 16
_libc = ctypes.PyDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The socket between PID 1 and its worker, used to pass one descriptor."""

    ours: socket.socket
    theirs: socket.socket


def build_mediating_filter() -> PreparedFilter:
    """Build the filter that suspends the mediated calls."""
    return PreparedFilter(build_asking_filter(MEDIATED, FOLDERS_OPENED))


def open_line() -> Line:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Line(ours=ours, theirs=theirs)


def hand_over(line: Line, asking: PreparedFilter, box: Sequence[str]) -> None:
    """Load the filter in the worker, just before it becomes the program; pass on the listener."""
    listener = asking.load_asking()
    socket.send_fds(line.theirs, [json.dumps(box).encode()], [listener])
    os.close(listener)
    line.theirs.close()


def start(line: Line) -> None:
    """Answer requests in a thread of PID 1, which must not fork after this."""
    line.theirs.close()
    # Signals belong to the main thread, which would not notice one that arrived here.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _thread.start_new_thread(_serve, (line.ours,))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(line: socket.socket) -> None:
    message, received, _, _ = socket.recv_fds(line, _LARGEST_MESSAGE, 1)
    line.close()
    if not received:
        return
    places = (os.path.realpath(place) for place in json.loads(message))
    box = tuple(f"{place}/" for place in places if os.path.isdir(place))
    while True:
        question = bytearray(_QUESTION.size)
        try:
            fcntl.ioctl(received[0], _RECEIVE, question)
        except OSError as error:
            # The process that asked may have died meanwhile.
            if error.errno in {errno.ENOENT, errno.EINTR}:
                continue
            os.close(received[0])
            return
        _answer(received[0], bytes(question), box)


def _answer(listener: int, question: bytes, box: tuple[str, ...]) -> None:
    number, thread, _, call, _, _, *arguments = _QUESTION.unpack(question)

    def check() -> None:
        """Verify that the thread still waits; otherwise its number may belong to another."""
        fcntl.ioctl(listener, _STILL_WAITING, _NUMBER.pack(number))

    asker = _Asker(thread=thread, check=check)
    name = _NAMES.get(call, "")
    if name in _FLAGS_AT:
        at = _FLAGS_AT[name]
        _open_for(listener, number, asker, arguments[at - 1], arguments[at])
        return
    try:
        _act_for(asker, name, arguments, box)
        refusal = 0
    except OSError as error:
        refusal = error.errno or errno.EPERM
    try:
        fcntl.ioctl(listener, _SEND, _ANSWER.pack(number, 0, -refusal, 0))
    except OSError:
        return


def _open_for(listener: int, number: int, asker: "_Asker", address: int, flags: int) -> None:
    """Pass on the list of its own descriptors if the program opens it; nothing of other processes.

    Otherwise the kernel continues with the call, and Landlock decides. If the program changes the
    path meanwhile, it still reaches only what Landlock allows.
    """
    with suppress(OSError):
        folder = asker.open_own_descriptors(address)
        try:
            asker.check()
            theirs = flags & os.O_CLOEXEC
            addition = _ADDITION.pack(number, _AS_THE_ANSWER, folder, 0, theirs)
            fcntl.ioctl(listener, _ADD_DESCRIPTOR, addition)
        finally:
            os.close(folder)
        return
    with suppress(OSError):
        fcntl.ioctl(listener, _SEND, _ANSWER.pack(number, 0, 0, _LET_THE_KERNEL))


def _act_for(asker: "_Asker", name: str, arguments: Sequence[int], box: tuple[str, ...]) -> None:
    first, second, third, fourth, *_ = arguments
    match name:
        case "chmod":
            target, mode = asker.look_up(_CURRENT_FOLDER, first), second
        case "fchmod":
            target, mode = asker.take(first), second
        case "fchmodat":
            target, mode = asker.look_up(first, second), third
        case "utimensat":
            target, mode = asker.look_up(first, second, fourth), 0
        case _:
            raise PermissionError(errno.EPERM, "not a call that we were to be asked about")
    try:
        place = os.readlink(f"/proc/self/fd/{target}")
        if not f"{place}/".startswith(box) or mode & _SET_ID_BITS:
            raise PermissionError(errno.EPERM, "not in the box")
        if name == "utimensat":
            times = asker.read(third, _TWO_TIMES) if third else None
            asker.check()
            _set_times(target, times)
        else:
            asker.check()
            os.chmod(f"/proc/self/fd/{target}", mode & 0o1777)
    finally:
        os.close(target)


def _set_times(target: int, times: bytes | None) -> None:
    path = f"/proc/self/fd/{target}".encode()
    if _libc.utimensat(_CURRENT_FOLDER, path, times, 0) != 0:
        raise OSError(ctypes.get_errno(), "utimensat")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    """The thread that waits for an answer; resolves its arguments."""

    thread: int
    check: Callable[[], None]

    def look_up(self, folder: int, address: int, flags: int = 0) -> int:
        """Open what a call names, as the kernel would have found it, with O_PATH only."""
        if not address:
            return self.take(folder)
        path = self._read_path(address)
        if not path and flags & _FOLDER_ITSELF:
            return self.take(folder)
        if path.startswith(b"/proc/self/"):
            path = b"/proc/%d/%b" % (self.thread, path.removeprefix(b"/proc/self/"))
        how = os.O_PATH | os.O_CLOEXEC
        if flags & _NOT_THROUGH_LINKS:
            how |= os.O_NOFOLLOW
        start = self.take(folder)
        try:
            return os.open(path, how, dir_fd=start)
        finally:
            os.close(start)

    def take(self, descriptor: int) -> int:
        """Open what the thread has open under a descriptor, or its current folder."""
        number = ctypes.c_int(descriptor & 0xFFFFFFFF).value
        place = "cwd" if number == _CURRENT_FOLDER else f"fd/{number}"
        try:
            return os.open(f"/proc/{self.thread}/{place}", os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise OSError(errno.EBADF, "no such descriptor") from error

    def open_own_descriptors(self, address: int) -> int:
        """Open the list of its descriptors.

        Raises:
            OSError: If the path names anything else, or is unreadable.
        """
        named = _OWN_DESCRIPTORS.fullmatch(self._read_path(address))
        if named is None or (named[1] is not None and int(named[1]) != self._process()):
            raise PermissionError(errno.EPERM, "not its own descriptors")
        place = f"/proc/{self.thread}/fd"
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _process(self) -> int:
        with open(f"/proc/{self.thread}/status", "rb") as status:
            return next(int(line[5:]) for line in status if line.startswith(b"Tgid:"))

    def _read_path(self, address: int) -> bytes:
        found = b""
        while len(found) < _LONGEST_PATH:
            # Never across the end of a page, because the next page may not be mapped.
            piece = self.read(address, _PAGE - address % _PAGE)
            text, end, _ = piece.partition(b"\0")
            found += text
            if end:
                return found
            address += len(piece)
        raise OSError(errno.ENAMETOOLONG, "a path without an end")

    def read(self, address: int, size: int) -> bytes:
        memory = os.open(f"/proc/{self.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(memory, size, address)
        except (OSError, OverflowError) as error:
            raise OSError(errno.EFAULT, "nothing can be read there") from error
        finally:
            os.close(memory)
        if len(found) < size:
            raise OSError(errno.EFAULT, "less can be read there than was said")
        return found


def _names() -> dict[int, str]:
    table = syscalls.table()
    return {table[name]: name for name in (*MEDIATED, *_FLAGS_AT) if name in table}


_NAMES: Final = _names()
