"""Compiles a policy to a seccomp filter and loads filters into this process.

The filter is a binary search for the number of the call, so a call needs at most about nine
comparisons. The kernel (5.11 and newer) allows a call at no cost if its path reads only number and
architecture and always allows it. It detects such calls when the filter is loaded.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from assay.sandbox.native.kernel import syscalls
from assay.sandbox.native.kernel.seccomp_policy import (
    LOW_WORD,
    Condition,
    Policy,
    Rule,
    build_policy,
)

ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
REFUSE: Final = 0x00050000
"""The low half carries the errno."""
ASK: Final = 0x7FC00000
"""Suspend the caller until the listener answers."""

_INSTRUCTION: Final = struct.Struct("=HBBI")
_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_JUMP: Final = 0x05
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_NOT_BELOW: Final = 0x35
_RETURN: Final = 0x06

# struct seccomp_data: int nr, u32 arch, u64 instruction_pointer, u64 args[6], low word first.
_NUMBER_AT: Final = 0
_ARCH_AT: Final = 4
_ARGUMENTS_AT: Final = 16
_ARGUMENT_BYTES: Final = 8

_X32_BIT: Final = 0x40000000
_REACH: Final = 254
"""One less than a branch can jump, because a jump for the other target may be inserted."""

_libc = ctypes.PyDLL(None, use_errno=True)
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_SET_MODE_FILTER: Final = 1
_NEW_LISTENER: Final = 8
_WAIT_KILLABLE: Final = 32
"""After the listener has received a request, only a fatal signal interrupts it. So `opendir`
never fails with EINTR, which programs do not expect."""


def build_filter(
    *,
    own_namespaces: bool = True,
    counted_memory: bool = True,
    machine: str | None = None,
) -> bytes:
    """Build the filter for a jailed program, ready for `load`.

    Raises:
        UnsupportedMachineError: If there is no table of system calls for the machine.
    """
    policy = build_policy(own_namespaces=own_namespaces, counted_memory=counted_memory)
    return compile_policy(policy, machine=machine)


def compile_policy(policy: Policy, *, machine: str | None = None) -> bytes:
    """Compile a policy to a filter for a machine, by default this one.

    Raises:
        UnsupportedMachineError: If there is no table of system calls for the machine.
    """
    name = syscalls.this_machine() if machine is None else machine
    code = _Assembler()
    by_number = _places_by_number(code, policy, syscalls.table(name))
    entry = code.search(_ranges(by_number, otherwise=code.answer(REFUSE | errno.ENOSYS)))
    if name == "x86_64":
        # The x32 ABI shares x86_64's arch value and would evade every number above.
        entry = code.branch(_JUMP_IF_NOT_BELOW, _X32_BIT, yes=code.answer(KILL_PROCESS), no=entry)
    entry = code.load(_NUMBER_AT, entry)
    arch = syscalls.AUDIT_ARCH[name]
    entry = code.branch(_JUMP_IF_EQUAL, arch, yes=entry, no=code.answer(KILL_PROCESS))
    code.load(_ARCH_AT, entry)
    return code.assemble()


def build_asking_filter(
    names: Iterable[str],
    conditional: Mapping[str, Condition] = MappingProxyType({}),
    *,
    machine: str | None = None,
) -> bytes:
    """Build a filter that suspends some calls and allows all others, for `load_asking`.

    Conditional calls are suspended if their condition holds. The filter is loaded on top of one
    that has checked the architecture and x32 already.
    """
    table = syscalls.table(syscalls.this_machine() if machine is None else machine)
    code = _Assembler()
    places = {
        table[name]: _place_of_condition(
            code, condition, yes=code.answer(ASK), no=code.answer(ALLOW)
        )
        for name, condition in conditional.items()
        if name in table
    }
    places |= dict.fromkeys((table[name] for name in names if name in table), code.answer(ASK))
    code.load(_NUMBER_AT, code.search(_ranges(places, otherwise=code.answer(ALLOW))))
    return code.assemble()


class _Program(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class PreparedFilter:
    """A filter laid out in memory, so that loading it is one system call."""

    def __init__(self, program: bytes) -> None:
        self._instructions = ctypes.create_string_buffer(program, len(program))
        self._header = _Program(
            length=len(program) // _INSTRUCTION.size,
            instructions=ctypes.cast(self._instructions, ctypes.c_void_p),
        )

    def load(self) -> None:
        """Apply the filter permanently to the calling thread and everything it starts.

        The caller must have set no_new_privs, as the kernel requires. Other threads are unaffected.

        Raises:
            OSError: If the kernel refuses the filter.
        """
        header = ctypes.byref(self._header)
        if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"the kernel refused the seccomp filter: {os.strerror(code)}")

    def load_asking(self) -> int:
        """Load a filter that suspends calls; return the descriptor that receives the requests.

        Raises:
            OSError: If the kernel refuses the filter.
        """
        number = ctypes.c_long(syscalls.table()["seccomp"])
        header = ctypes.byref(self._header)
        _libc.syscall.restype = ctypes.c_long
        listener = int(
            _libc.syscall(number, _SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE, header)
        )
        if listener < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"the kernel refused the seccomp filter: {os.strerror(code)}")
        return listener


def load(program: bytes) -> None:
    """Load a filter; see `PreparedFilter.load`."""
    PreparedFilter(program).load()


class _Assembler:
    """Writes a program from its end, because BPF jumps only forward and all targets are then known.

    A place is the index of an instruction, counted from the end of the program.
    """

    def __init__(self) -> None:
        self._backwards: list[tuple[int, int, int, int]] = []
        self._returns: dict[int, int] = {}

    def assemble(self) -> bytes:
        return b"".join(_INSTRUCTION.pack(*words) for words in reversed(self._backwards))

    def answer(self, action: int) -> int:
        """Return a place that ends the program with an action."""
        place = self._returns.get(action)
        if place is None or self._distance(place) > _REACH:
            place = self._returns[action] = self._emit(_RETURN, action)
        return place

    def load(self, offset: int, then: int) -> int:
        return self._before(then, _LOAD_WORD, offset)

    def mask(self, bits: int, then: int) -> int:
        return self._before(then, _AND, bits)

    def branch(self, operation: int, operand: int, *, yes: int, no: int) -> int:
        if yes == no:
            return yes
        near_yes = self._within_reach(yes)
        near_no = self._within_reach(no)
        return self._emit(operation, operand, self._distance(near_yes), self._distance(near_no))

    def search(self, starts: list[tuple[int, int]]) -> int:
        """Return a place that jumps to the last sorted (start, place) pair up to the value."""
        if len(starts) == 1:
            return starts[0][1]
        middle = len(starts) // 2
        upper = self.search(starts[middle:])
        lower = self.search(starts[:middle])
        return self.branch(_JUMP_IF_NOT_BELOW, starts[middle][0], yes=upper, no=lower)

    def _before(self, then: int, operation: int, operand: int) -> int:
        if self._distance(then) > 0:
            self._emit(_JUMP, self._distance(then))
        return self._emit(operation, operand)

    def _within_reach(self, place: int) -> int:
        if self._distance(place) <= _REACH:
            return place
        operation, _, _, operand = self._backwards[place]
        if operation == _RETURN:
            return self.answer(operand)
        return self._emit(_JUMP, self._distance(place))

    def _distance(self, place: int) -> int:
        return len(self._backwards) - place - 1

    def _emit(self, operation: int, operand: int, yes: int = 0, no: int = 0) -> int:
        self._backwards.append((operation, yes, no, operand))
        return len(self._backwards) - 1


def _places_by_number(code: _Assembler, policy: Policy, table: Mapping[str, int]) -> dict[int, int]:
    # Rules come first, so that equal answers share one place and adjacent ranges merge.
    rules = {
        name: _place_of_rule(code, rule) for name, rule in policy.rules.items() if name in table
    }
    allowed = code.answer(ALLOW)
    hidden = code.answer(REFUSE | errno.ENOSYS)
    denied = code.answer(REFUSE | errno.EPERM)
    places = {
        **dict.fromkeys(table, denied),
        **dict.fromkeys(policy.hidden, hidden),
        **dict.fromkeys(policy.allowed, allowed),
        **rules,
    }
    return {number: places[name] for name, number in table.items()}


def _place_of_rule(code: _Assembler, rule: Rule) -> int:
    otherwise = code.answer(REFUSE | rule.refusal)
    ignored = ((conditions, REFUSE) for conditions in rule.ignored)
    allowed = ((conditions, ALLOW) for conditions in rule.alternatives)
    # Written backwards: the first condition to check is emitted last.
    for conditions, action in reversed([*ignored, *allowed]):
        place = code.answer(action)
        for condition in reversed(conditions):
            place = _place_of_condition(code, condition, yes=place, no=otherwise)
        otherwise = place
    return otherwise


def _place_of_condition(code: _Assembler, condition: Condition, *, yes: int, no: int) -> int:
    ranges = _ranges(dict.fromkeys(condition.values, yes), otherwise=no)
    place = code.search(ranges)
    if condition.mask != LOW_WORD:
        place = code.mask(condition.mask, place)
    return code.load(_ARGUMENTS_AT + _ARGUMENT_BYTES * condition.argument, place)


def _ranges(places: Mapping[int, int], *, otherwise: int) -> list[tuple[int, int]]:
    """Return sorted (start, place) pairs that cover every value; equal neighbors are merged."""
    edges = {0, *places, *(value + 1 for value in places if value < LOW_WORD)}
    merged: list[tuple[int, int]] = []
    for edge in sorted(edges):
        place = places.get(edge, otherwise)
        if not merged or merged[-1][1] != place:
            merged.append((edge, place))
    return merged
