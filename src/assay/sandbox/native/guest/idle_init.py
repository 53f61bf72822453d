"""The program that PID 1 of a pending jail becomes: it waits to be killed.

A PID 1 that stays Python keeps about two megabytes of pages for nothing. This program has one page
of instructions: it becomes unreachable, reports that the jail is ready, and sleeps. It has no
interpreter and no libraries, so it needs no file of the jail.
"""

import fcntl
import os
import signal
import struct
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NoReturn

from assay.sandbox.native.kernel import open_files, syscalls

_READY: Final = 3
"""The descriptor on which the program reports that the jail is ready."""
_ABOVE_ALL_OTHERS: Final = 1024
"""Or the highest number that the limit of open files allows."""
_PR_SET_DUMPABLE: Final = 4
_ADDRESS: Final = 0x10000000
_HEADERS: Final = 64 + 2 * 56
_WORD: Final = b"1".ljust(16, b"\0")
"""The report, right behind the headers."""
_EXECUTABLE, _CURRENT = 2, 1
_LOADED, _STACK = 1, 0x6474E551
_READ_AND_RUN, _READ_AND_WRITE = 5, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The instruction encoding for one processor architecture."""

    name: str
    elf: int
    call: Callable[..., bytes]
    """Encodes a system call with its number and up to four arguments."""
    jump: Callable[[int], bytes]
    """Encodes a jump backwards by a number of bytes, counted from its own start."""


def open_program() -> int | None:
    """Return a descriptor of the program, or None if it is not available."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        return None
    with suppress(OSError), ExitStack() as opened:
        memory = os.memfd_create("init")
        opened.callback(os.close, memory)
        os.write(memory, program_for(machine))
        # Reopened, because a file that is open for writing cannot be executed.
        reading = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, reading)
        above = open_files.highest(_ABOVE_ALL_OTHERS + 1)
        return fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, above)
    return None


def sleep(program: int | None, ready: int) -> NoReturn:
    """Report readiness on `ready`, release all descriptors and sleep, if possible as `program`."""
    os.dup2(ready, _READY)
    if program is not None:
        os.closerange(_READY + 1, program)
        with suppress(OSError):
            os.execve(program, ["init"], {})  # noqa: S606 - a program of our own
    os.write(_READY, b"1")
    os.closerange(_READY, open_files.MOST_OPEN)
    while True:
        signal.pause()


def program_for(machine: Machine) -> bytes:
    """Return the ELF file: one readable and executable segment, and a non-executable stack."""
    code = _WORD + _instructions(machine)
    size = _HEADERS + len(code)
    start = _ADDRESS + _HEADERS + len(_WORD)
    header = struct.pack(
        "<4s5B7xHHIQQQI6H",
        *(b"\x7fELF", 2, 1, _CURRENT, 0, 0),
        *(_EXECUTABLE, machine.elf, _CURRENT, start, 64, 0, 0),
        *(64, 56, 2, 0, 0, 0),
    )
    piece = (_LOADED, _READ_AND_RUN, 0, _ADDRESS, _ADDRESS, size, size, 4096)
    stack = (_STACK, _READ_AND_WRITE, 0, 0, 0, 0, 0, 16)
    return header + b"".join(struct.pack("<2I6Q", *each) for each in (piece, stack)) + code


def _instructions(machine: Machine) -> bytes:
    number = syscalls.table(machine.name)
    sleep = machine.call(number["ppoll"], 0, 0, 0, 0)
    return b"".join(
        (
            machine.call(number["prctl"], _PR_SET_DUMPABLE, 0, 0, 0),
            machine.call(number["write"], _READY, _ADDRESS + _HEADERS, 1),
            machine.call(number["close"], _READY),
            sleep,
            machine.jump(len(sleep)),
        )
    )


def _call_x86_64(number: int, *arguments: int) -> bytes:
    # mov eax|edi|esi|edx|r10d, value; then syscall
    moves = (b"\xb8", b"\xbf", b"\xbe", b"\xba", b"\x41\xba")
    values = zip(moves, (number, *arguments), strict=False)
    return b"".join(move + struct.pack("<I", value) for move, value in values) + b"\x0f\x05"


def _jump_x86_64(back: int) -> bytes:
    return b"\xeb" + struct.pack("<b", -back - 2)


def _call_aarch64(number: int, *arguments: int) -> bytes:
    # movz and movk, the two halves of each value; then svc 0
    words: list[int] = []
    for register, value in ((8, number), *enumerate(arguments)):
        words.append(0xD2800000 | (value & 0xFFFF) << 5 | register)
        words.append(0xF2A00000 | (value >> 16) << 5 | register)
    return struct.pack(f"<{len(words) + 1}I", *words, 0xD4000001)


def _jump_aarch64(back: int) -> bytes:
    return struct.pack("<I", 0x14000000 | (-back // 4 & 0x3FFFFFF))


MACHINES: Final[Mapping[str, Machine]] = MappingProxyType(
    {
        machine.name: machine
        for machine in (
            Machine(name="x86_64", elf=62, call=_call_x86_64, jump=_jump_x86_64),
            Machine(name="aarch64", elf=183, call=_call_aarch64, jump=_jump_aarch64),
        )
    }
)
