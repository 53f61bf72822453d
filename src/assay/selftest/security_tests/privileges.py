"""Attacks through operations that need privileges, and on privileges themselves.

Targets are the metadata of host files (permissions, owners, times, leases, device numbers), kernel
settings, terminals, and the rights of the program.
"""

from dataclasses import replace

from assay.contracts.execution import Isolation
from assay.selftest.security_tests.attack import AttackConfig
from assay.selftest.security_tests.probe import (
    CALL,
    CALL_CONTROL,
    FIND_IN,
    OPEN_ANY_FOR_WRITING,
    build_probe,
    build_probes,
)

_CONFIG = AttackConfig(group="host_data")
_OF_THE_HOST = "TARGET = CANARY['writable_file']"
_ONE_OF_ITS_OWN = """
TARGET = os.path.abspath("own")
open(TARGET, "w").close()
"""

_CHANGES = {
    "the_mode_of_a_file_of_the_host_cannot_be_changed": "os.chmod(TARGET, 0o640)",
    "the_mode_of_a_file_of_the_host_cannot_be_changed_through_a_link": (
        "(os.symlink(TARGET, 'link'), os.chmod('link', 0o640))"
    ),
    "the_mode_of_a_file_of_the_host_cannot_be_changed_from_its_folder": (
        "(os.chdir(os.path.dirname(TARGET)), os.chmod(os.path.basename(TARGET), 0o640))"
    ),
    "the_mode_of_a_file_of_the_host_cannot_be_changed_through_a_descriptor": (
        "os.chmod(f'/proc/self/fd/{os.open(TARGET, os.O_PATH)}', 0o640)"
    ),
    "the_mode_of_a_file_of_the_host_cannot_be_changed_through_the_root_of_a_process": (
        "os.chmod('/proc/self/root' + TARGET, 0o640)"
    ),
    "the_mode_of_a_folder_of_the_host_cannot_be_changed": (
        "os.chmod(os.path.dirname(TARGET), 0o750)"
    ),
    "the_times_of_a_file_of_the_host_cannot_be_changed": "os.utime(TARGET, (1, 1))",
    "the_times_of_a_link_of_the_host_cannot_be_changed": (
        "os.utime(TARGET, (1, 1), follow_symlinks=False)"
    ),
}

CHANGES = build_probes(
    _CHANGES,
    detector="judge(lambda: (True, {row}))",
    attack=_OF_THE_HOST,
    control=_ONE_OF_ITS_OWN,
    config=_CONFIG,
)

_REFUSALS = {
    "the_group_of_a_file_of_the_host_cannot_be_changed": "os.chown(TARGET, -1, os.getgid())",
    "an_attribute_of_a_file_of_the_host_cannot_be_set": "os.setxattr(TARGET, 'user.x', b'x')",
}

REFUSALS = build_probes(
    _REFUSALS,
    detector=CALL,
    attack=_OF_THE_HOST + "\nACT = lambda: {row}",
    control=CALL_CONTROL,
    config=_CONFIG,
)

SWAPPED = build_probe(
    "a_link_that_changes_its_mind_does_not_change_the_mode_of_a_file_of_the_host",
    detector="""
        import threading, time
        open("harmless", "w").close()
        over = time.monotonic() + 1
        def swap():
            while time.monotonic() < over:
                for target in ("harmless", TARGET):
                    os.symlink(target, "new")
                    os.rename("new", "link")
        os.symlink("harmless", "link")
        swapper = threading.Thread(target=swap)
        swapper.start()
        while time.monotonic() < over:
            try:
                os.chmod("link", 0o640)
            except OSError:
                pass
        swapper.join()
        judge(lambda: os.stat(TARGET).st_mode & 0o777 == 0o640 and "changed")
    """,
    attack=_OF_THE_HOST,
    control=_ONE_OF_ITS_OWN,
    config=_CONFIG,
)

_INODE_CONFIG = AttackConfig(group="host_data", not_applicable_from=Isolation.KERNEL)

DEVICES = build_probe(
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
    config=_INODE_CONFIG,
)

LEASES = build_probe(
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
    config=_INODE_CONFIG,
)

DIRECTORY_NOTES = build_probe(
    "changes_of_folders_are_not_told_by_signals",
    detector=CALL,
    attack="""
        import fcntl
        def ACT():
            folder = os.open(".", os.O_RDONLY)
            fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS)
    """,
    control=CALL_CONTROL,
    config=_INODE_CONFIG,
)

KERNEL_SETTINGS = build_probe(
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
    config=_INODE_CONFIG,
)

TERMINALS = build_probe(
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
    config=_INODE_CONFIG,
)

TYPING = build_probe(
    "nobody_types_into_a_terminal_of_the_sandbox",
    detector="""
        import fcntl
        _, terminal = os.openpty()
        judge(lambda: (True, fcntl.ioctl(terminal, REQUEST, WORD)))
    """,
    attack="REQUEST, WORD = 0x5412, b'x'",
    # The size of the window
    control="REQUEST, WORD = 0x5413, bytes(8)",
    config=replace(_INODE_CONFIG, needs=Isolation.ISOLATED),
)
_SHARED_KERNEL = replace(_CONFIG, not_applicable_from=Isolation.KERNEL)

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

PRIVILEGES = build_probes(
    _PRIVILEGES,
    detector=CALL,
    attack="ACT = {row}",
    control=CALL_CONTROL,
    config=_CONFIG,
)

NOT_ROOT = build_probe(
    "a_program_is_not_root",
    detector="judge(lambda: set(WHO) & {os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()})",
    attack="WHO = [0]",
    control="WHO = [0, os.getuid()]",
    config=_CONFIG,
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

STATUS = build_probes(
    _STATUS,
    detector=FIND_IN,
    attack="TARGET, NEEDLE = '/proc/self/status', {row!r}",
    control=_STATUS_CONTROL + "\nNEEDLE = {row!r}",
    config=_SHARED_KERNEL,
)

DESCRIPTORS = tuple(
    build_probe(
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
        config=terms,
    )
    for name, terms in (
        ("only_the_three_standard_streams_are_open", _CONFIG),
        ("only_the_three_standard_streams_are_open_in_commands", replace(_CONFIG, by_command=True)),
    )
)
