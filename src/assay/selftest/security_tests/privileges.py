"""Attacks on privileges: the rights of a program, and ways to gain more."""

from dataclasses import replace

from assay.contracts.execution import Isolation
from assay.selftest.security_tests.attack import AttackConfig
from assay.selftest.security_tests.probe import probing
from assay.selftest.security_tests.targets import CALL, CALL_CONTROL, FIND_IN

_TERMS = AttackConfig(group="host_data")
_SHARED_KERNEL = replace(_TERMS, not_applicable_from=Isolation.KERNEL)

_PRIVILEGES = {
    "becoming_root_is_refused": "lambda: os.setuid(0)",
    "becoming_root_for_a_while_is_refused": "lambda: os.setresuid(-1, 0, -1)",
    "joining_the_group_of_root_is_refused": "lambda: os.setgid(0)",
    "joining_other_groups_is_refused": "lambda: os.setgroups([0, 4, 6, 27, 42])",
    "giving_a_file_away_is_refused": "lambda: (open('mine', 'w').close(), os.chown('mine', 0, 0))",
    "a_new_root_directory_is_refused": "lambda: os.chroot('.')",
    "mapping_oneself_to_root_is_refused": (
        "lambda: os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1')"
    ),
    "mapping_ones_group_to_root_is_refused": (
        "lambda: os.write(os.open('/proc/self/gid_map', os.O_WRONLY), b'0 0 1')"
    ),
}

PRIVILEGES = tuple(
    probing(name, detector=CALL, attack=f"ACT = {act}", control=CALL_CONTROL, terms=_TERMS)
    for name, act in _PRIVILEGES.items()
)

NOT_ROOT = probing(
    "a_program_is_not_root",
    detector="judge(lambda: set(WHO) & {os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()})",
    attack="WHO = [0]",
    control="WHO = [0, os.getuid()]",
    terms=_TERMS,
)

_STATUS_CONTROL = """
with open("planted", "w") as file:
    file.write("Name:\\tx\\nCapEff:\\t0000000000000400\\nNoNewPrivs:\\t0\\nSeccomp:\\t0\\n")
TARGET = "planted"
"""
_STATUS = {
    "a_program_has_no_capabilities": r"^Cap\w+:\s*0*[1-9a-f][0-9a-f]*$",
    "a_program_cannot_gain_privileges_by_exec": r"^NoNewPrivs:\s*0",
    "a_program_runs_behind_a_filter": r"^Seccomp:\s*[01]$",
}

STATUS = tuple(
    probing(
        name,
        detector=FIND_IN,
        attack=f"TARGET, NEEDLE = '/proc/self/status', {needle!r}",
        control=_STATUS_CONTROL + f"\nNEEDLE = {needle!r}",
        terms=_SHARED_KERNEL,
    )
    for name, needle in _STATUS.items()
)

DESCRIPTORS = tuple(
    probing(
        name,
        detector="""
            def opened():
                found = []
                for descriptor in range(3, 4096):
                    try:
                        os.fstat(descriptor)
                    except OSError:
                        continue
                    found.append(descriptor)
                return found
            judge(opened)
        """,
        attack="",
        control="held_open = open('planted', 'w')",
        terms=terms,
    )
    for name, terms in (
        ("only_the_three_standard_streams_are_open", _TERMS),
        ("only_the_three_standard_streams_are_open_in_commands", replace(_TERMS, by_command=True)),
    )
)
