import re
from pathlib import Path

import pytest

from assay.sandbox.native.kernel import syscalls
from tests.support.requirements import require

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
MACHINES = sorted(syscalls.NUMBERS)


@pytest.mark.parametrize(
    ("name", "on_x86_64", "on_aarch64"),
    [
        ("read", 0, 63),
        ("open", 2, None),
        ("openat", 257, 56),
        ("rseq", 334, 293),
        ("kexec_file_load", 320, 294),
        ("recvmmsg", 299, 243),
        ("wait4", 61, 260),
        ("pidfd_send_signal", 424, 424),
        ("clone3", 435, 435),
        ("landlock_restrict_self", 446, 446),
        ("fchmodat2", 452, 452),
        ("mseal", 462, 462),
        ("no_such_call", None, None),
    ],
)
def test_a_name_has_the_number_its_machine_gave_it(
    name: str, on_x86_64: int | None, on_aarch64: int | None
) -> None:
    assert syscalls.number(name, "x86_64") == on_x86_64
    assert syscalls.number(name, "aarch64") == on_aarch64


@pytest.mark.parametrize("machine", MACHINES)
def test_no_two_names_share_a_number(machine: str) -> None:
    numbers = list(syscalls.NUMBERS[machine].values())

    assert len(set(numbers)) == len(numbers)


def test_the_table_agrees_with_this_machines_header() -> None:
    require("linux-headers", available=HEADER.exists(), why=f"there is no {HEADER}")
    found = re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())

    assert {name: syscalls.number(name, "x86_64") for name, _ in found} == {
        name: int(number) for name, number in found
    }


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_has_a_name_for_its_calling_convention(machine: str) -> None:
    assert syscalls.AUDIT_ARCH[machine] >> 30 == 0b11, "64 bits, low byte first"


def test_the_machine_is_this_one_unless_named() -> None:
    assert syscalls.number("read") == syscalls.number("read", syscalls.this_machine())


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(syscalls.UnsupportedMachineError, match=r"no table .* 'pdp11'"):
        syscalls.number("read", "pdp11")
