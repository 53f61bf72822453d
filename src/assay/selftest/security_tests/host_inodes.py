"""Attacks on host files through operations without write permission: times, leases, numbers."""

from dataclasses import replace

from assay.contracts.execution import Isolation
from assay.selftest.security_tests.attack import AttackConfig
from assay.selftest.security_tests.probe import probing
from assay.selftest.security_tests.targets import CALL, CALL_CONTROL, OPEN_ANY_FOR_WRITING

_TERMS = AttackConfig(group="host_data", not_applicable_from=Isolation.KERNEL)

DEVICES = probing(
    "the_times_of_devices_cannot_be_changed",
    detector="""
        def touch_any():
            for target in TARGETS:
                try:
                    os.utime(target)
                except OSError:
                    continue
                return target
        judge(touch_any)
    """,
    attack="""
        TARGETS = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    """,
    control="""
        open("own", "w").close()
        TARGETS = ["missing", "own"]
    """,
    terms=_TERMS,
)

LEASES = probing(
    "leases_are_refused",
    detector=CALL,
    attack="""
        import fcntl
        def ACT():
            # On a file of the program's own, where no other rule would refuse it.
            with open("own", "w") as file:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    """,
    control=CALL_CONTROL,
    terms=_TERMS,
)

DIRECTORY_NOTES = probing(
    "changes_of_folders_are_not_told_by_signals",
    detector=CALL,
    attack="""
        import fcntl
        def ACT():
            folder = os.open(".", os.O_RDONLY)
            fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
    """,
    control=CALL_CONTROL,
    terms=_TERMS,
)

KERNEL_SETTINGS = probing(
    "no_setting_of_the_kernel_can_be_opened_for_writing",
    detector=OPEN_ANY_FOR_WRITING,
    attack="""
        TARGETS = ["/proc/sys/kernel/ns_last_pid"]
        TARGETS += [
            os.path.join(folder, name)
            for folder, _, names in os.walk("/proc/sys")
            for name in names
        ]
    """,
    control="""
        open("own", "w").close()
        TARGETS = ["own"]
    """,
    terms=_TERMS,
)

TERMINALS = probing(
    "a_new_terminal_is_not_one_of_the_host",
    detector="""
        # The file system that a terminal is in tells whose it is.
        judge(lambda: os.fstat(MAKE()).st_dev == DEVICE)
    """,
    attack="DEVICE, MAKE = CANARY['terminals'], lambda: os.openpty()[1]",
    control="""
        DEVICE = os.stat(".").st_dev
        MAKE = lambda: os.open("own", os.O_CREAT | os.O_RDWR)
    """,
    terms=_TERMS,
)

TYPING = probing(
    "nobody_types_into_a_terminal_of_the_sandbox",
    detector="""
        import fcntl
        _, terminal = os.openpty()
        judge(lambda: (True, fcntl.ioctl(terminal, REQUEST, WORD)))
    """,
    attack="REQUEST, WORD = 0x5412, b'x'",
    # The size of the window
    control="REQUEST, WORD = 0x5413, bytes(8)",
    terms=replace(_TERMS, needs=Isolation.ISOLATED),
)
