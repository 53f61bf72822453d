"""A seccomp filter that can be asked what it would say, and a slow twin that says the same."""

import errno
from collections.abc import Mapping

from assay.sandbox.native.kernel import syscalls
from assay.sandbox.native.kernel.seccomp import ALLOW, KILL_PROCESS, REFUSE, build_filter
from assay.sandbox.native.kernel.seccomp_policy import Policy
from tests.support import bpf

X32_BIT = 0x40000000
HIGH_BITS = (0, 1 << 32, 0xFFFFFFFF << 32)


class Filter:
    """A compiled filter that can be asked about calls by name."""

    def __init__(self, program: bytes, machine: str) -> None:
        self.instructions = bpf.disassemble(program)
        self._machine = machine

    def answer(self, number: int, *arguments: int, arch: int | None = None) -> bpf.Answer:
        return bpf.evaluate(
            self.instructions,
            number=number,
            arch=syscalls.AUDIT_ARCH[self._machine] if arch is None else arch,
            arguments=arguments,
        )

    def says(self, name: str, *arguments: int) -> str:
        """`allow`, `kill`, or the name of the errno; the same whatever the high words hold."""
        number = syscalls.NUMBERS[self._machine][name]
        answers = {
            described(self.answer(number, *(high | argument for argument in arguments)).action)
            for high in HIGH_BITS
        }
        return " or ".join(sorted(answers))


def described(action: int) -> str:
    match action:
        case code if code == ALLOW:
            return "allow"
        case code if code == KILL_PROCESS:
            return "kill"
        case _:
            return errno.errorcode[action ^ REFUSE]


def filter_for(machine: str = "x86_64", *, own_namespaces: bool = True) -> Filter:
    return Filter(build_filter(own_namespaces=own_namespaces, machine=machine), machine)


def expected_action(policy: Policy, name: str | None, arguments: tuple[int, ...]) -> int:
    """What the policy says, read the slow and obvious way."""
    if name is None or name in policy.hidden:
        return REFUSE | errno.ENOSYS
    if name not in policy.rules:
        return ALLOW if name in policy.allowed else REFUSE | errno.EPERM
    rule = policy.rules[name]
    allowed = any(
        all(arguments[test.argument] & 0xFFFFFFFF & test.mask in test.values for test in tests)
        for tests in rule.alternatives
    )
    return ALLOW if allowed else REFUSE | rule.refusal


def names_by_number(machine: str) -> Mapping[int, str]:
    return {number: name for name, number in syscalls.NUMBERS[machine].items()}
