"""Attacks on the host's kernel: system calls and interfaces that no program needs.

Every call has arguments that do nothing even where it is allowed.
"""

from dataclasses import replace

from assay.contracts.execution import Isolation, Reason
from assay.selftest.checks import Check
from assay.selftest.security_tests.attack import AttackConfig
from assay.selftest.security_tests.probe import (
    CALL,
    CALL_CONTROL,
    MAKE_SOCKET,
    MAKE_SOCKET_CONTROL,
    build_probe,
    build_probes,
)

_CONFIG = AttackConfig(group="kernel_surface", not_applicable_from=Isolation.KERNEL)

_SYSCALL = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
room = ctypes.create_string_buffer(4096)
HERE = ctypes.addressof(room)
trying()
number = NUMBERS.get(platform.machine())
if number is None:
    held("this machine has no such call")
else:
    arguments = [ctypes.c_long(HERE if value == "HERE" else value) for value in ARGUMENTS]
    answer = libc.syscall(ctypes.c_long(number), *arguments)
    error = ctypes.get_errno()
    if answer == 0 and FORKS:
        os._exit(0)
    # A refused ioctl may look like one that its file does not know.
    if answer == -1 and error in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTTY):
        held(errno.errorcode[error])
    else:
        breach((answer, errno.errorcode.get(error)))
"""
"""Fires unless the kernel rejects a call."""

_SYSCALL_CONTROL = """
NUMBERS, ARGUMENTS, FORKS = {"x86_64": 39, "aarch64": 172}, [], False
"""

_NEW_USER = 0x10000000
_NEW_NAMESPACE = 0x00020000
_SIGCHLD = 17
_CHARACTER_DEVICE = 0o020666
_READ_IMPLIES_EXEC = 0x0400000
_ADDR_NO_RANDOMIZE = 0x0040000
_TIOCSTI = 0x5412
_X32 = 0x40000000


def _call(
    name: str,
    x86_64: int,
    aarch64: int | None,
    arguments: tuple[int | str, ...] = (-1, 0, 0, 0, 0),
    *,
    forks: bool = False,
    by_command: bool = False,
) -> Check:
    """Build an attack that makes a system call, by its number on each machine."""
    numbers = {"x86_64": x86_64} | ({} if aarch64 is None else {"aarch64": aarch64})
    return build_probe(
        f"{name}_is_refused" + ("_to_other_programs_too" if by_command else ""),
        detector=_SYSCALL,
        attack=f"NUMBERS, ARGUMENTS, FORKS = {numbers}, {list(arguments)}, {forks}",
        control=_SYSCALL_CONTROL,
        config=replace(_CONFIG, by_command=by_command),
    )


INTRUSIVE = (
    _call("io_uring_setup", 425, 425, (8, "HERE")),
    _call("io_uring_enter", 426, 426),
    _call("io_uring_register", 427, 427),
    _call("bpf", 321, 280, (0, "HERE", 72)),
    _call("userfaultfd", 323, 282, (0,)),
    _call("perf_event_open", 298, 241, ("HERE", 0, -1, -1, 0)),
    _call("keyctl", 250, 219, (0, -3, 0)),
    _call("add_key", 248, 217, (0, 0, 0, 0, 0)),
    _call("request_key", 249, 218, (0, 0, 0, 0)),
    _call("ptrace", 101, 117, (0, 0, 0, 0)),
    _call("process_vm_readv", 310, 270, (1, "HERE", 1, "HERE", 1, 0)),
    _call("process_vm_writev", 311, 271, (1, "HERE", 1, "HERE", 1, 0)),
    _call("process_madvise", 440, 440),
    _call("pidfd_getfd", 438, 438, (-1, 0, 0)),
    _call("kcmp", 312, 272, (1, 1, 0, 0, 0)),
    _call("memfd_secret", 447, 447, (0,)),
    _call("vmsplice", 278, 75, (-1, "HERE", 1, 0)),
    _call("fanotify_init", 300, 262, (0, 0)),
    _call("name_to_handle_at", 303, 264),
    _call("open_by_handle_at", 304, 265, (-1, "HERE", 0)),
    _call("lookup_dcookie", 212, 18, (0, 0, 0)),
    _call("a_personality_of_executable_data", 135, 92, (_READ_IMPLIES_EXEC,)),
    _call("a_personality_without_random_addresses", 135, 92, (_ADDR_NO_RANDOMIZE,)),
    _call("modify_ldt", 154, None, (0, "HERE", 16)),
    _call("move_pages", 279, 239, (1, 0, 0, 0, 0, 0)),
    _call("migrate_pages", 256, 238, (1, 0, 0, 0)),
    _call("syslog", 103, 116, (10, 0, 0)),
)

ADMINISTRATIVE = (
    _call("mount", 165, 40, (0, "HERE", 0, 0, 0)),
    _call("umount2", 166, 39, ("HERE", 0)),
    _call("pivot_root", 155, 41, ("HERE", "HERE")),
    _call("chroot", 161, 51, ("HERE",)),
    _call("fsopen", 430, 430, (0, 0)),
    _call("fsconfig", 431, 431),
    _call("fsmount", 432, 432),
    _call("fspick", 433, 433),
    _call("open_tree", 428, 428),
    _call("move_mount", 429, 429),
    _call("mount_setattr", 442, 442),
    _call("kexec_load", 246, 104, (0, 0, 0, 0)),
    _call("kexec_file_load", 320, 294),
    _call("init_module", 175, 105, (0, 0, 0)),
    _call("finit_module", 313, 273, (-1, 0, 0)),
    _call("delete_module", 176, 106, (0, 0)),
    _call("swapon", 167, 224, (0, 0)),
    _call("swapoff", 168, 225, (0,)),
    _call("reboot", 169, 142, (0, 0, 0, 0)),
    _call("settimeofday", 164, 170, (0, "HERE")),
    _call("clock_settime", 227, 112, (0, 0)),
    _call("sethostname", 170, 161, (0, -1)),
    _call("setdomainname", 171, 162, (0, -1)),
    _call("acct", 163, 89, (0,)),
    _call("quotactl", 179, 60, (0, 0, 0, 0)),
    _call("vhangup", 153, 58, ()),
    _call("iopl", 172, None, (3,)),
    _call("ioperm", 173, None, (0, 1, 1)),
)

NAMESPACES = (
    _call("unsharing_a_user_namespace", 272, 97, (_NEW_USER,)),
    _call("unsharing_a_mount_namespace", 272, 97, (_NEW_NAMESPACE,)),
    _call("setns", 308, 268, (-1, 0)),
    _call("cloning_into_a_user_namespace", 56, 220, (_NEW_USER | _SIGCHLD, 0, 0, 0, 0), forks=True),
    _call("clone_with_stray_high_bits", 56, 220, (_NEW_USER | _SIGCHLD | 1 << 40, 0, 0, 0, 0),
          forks=True),
)  # fmt: skip

DOORS = (
    _call("making_a_device", 259, 33, (-100, "HERE", _CHARACTER_DEVICE, 0x101)),
    _call("pushing_input_into_a_terminal", 16, 29, (-1, _TIOCSTI, "HERE")),
    _call("pushing_input_with_stray_high_bits", 16, 29, (-1, _TIOCSTI | 1 << 32, "HERE")),
    _call("the_console_ioctl", 16, 29, (-1, 0x541C, "HERE")),
    _call("the_x32_way_in", 39 | _X32, None, ()),
    _call("the_x32_way_to_open", 2 | _X32, None, ("HERE", 0, 0)),
)

OTHER_PROGRAMS = (
    _call("io_uring_setup", 425, 425, (8, "HERE"), by_command=True),
    _call("unsharing_a_user_namespace", 272, 97, (_NEW_USER,), by_command=True),
    _call("ptrace", 101, 117, (0, 0, 0, 0), by_command=True),
)

_CLONE3 = """
import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
trying()
arguments = ctypes.create_string_buffer(struct.pack("8Q", FLAGS, 0, 0, 0, 17, 0, 0, 0))
answer = libc.syscall(ctypes.c_long(NUMBER), arguments, ctypes.c_long(64))
error = ctypes.get_errno()
if answer == 0 and NUMBER == 435:
    os._exit(0)
held(errno.errorcode[error]) if answer == -1 else breach(answer)
"""

CLONE3 = build_probe(
    "clone3_into_a_user_namespace_is_refused",
    detector=_CLONE3,
    attack=f"NUMBER, FLAGS = 435, {_NEW_USER}",
    control="""
        import platform
        NUMBER, FLAGS = {"x86_64": 39, "aarch64": 172}[platform.machine()], 0
    """,
    config=_CONFIG,
)

_MACHINE_CODE = """
import ctypes, mmap, platform
trying()
if platform.machine() != "x86_64":
    breach("control") if CONTROL else held("another kind of machine")
else:
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    breach(answer) if answer >= 0 else held(answer)
"""
"""Fires when the machine code CODE, which asks for the process id, gets an answer."""

THIRTY_TWO_BITS = build_probe(
    "the_32_bit_way_in_is_refused",
    detector=_MACHINE_CODE,
    # mov eax, 20 (getpid of the old table); int 0x80; ret
    attack="CODE, CONTROL = bytes.fromhex('b814000000cd80c3'), False",
    # mov eax, 39 (getpid); syscall; ret
    control="CODE, CONTROL = bytes.fromhex('b8270000000f05c3'), True",
    config=_CONFIG.ending(Reason.SIGNALLED),
)

_FAMILIES = {
    "vsock": (40, 1, 0),
    "netlink": (16, 3, 0),
    "packet": (17, 3, 0),
    "alg": (38, 5, 0),
    "xdp": (44, 3, 0),
    "bluetooth": (31, 1, 3),
    "tipc": (30, 1, 0),
    "can": (29, 3, 1),
    "rds": (21, 5, 0),
    "key": (15, 3, 2),
}

SOCKET_FAMILIES = build_probes(
    _FAMILIES,
    name="a_socket_of_family_{name}_is_refused",
    detector=MAKE_SOCKET,
    attack="MAKE = lambda socket: socket.socket{row}",
    control=MAKE_SOCKET_CONTROL,
    config=_CONFIG,
)

_BPF_OPTIONS = {
    "a_socket_filter_is_refused": "26, b'\\0' * 16",
    "a_filter_for_ports_in_common_is_refused": "51, b'\\0' * 16",
    "locking_a_socket_filter_is_refused": "44, 1",
}

SOCKET_FILTERS = build_probes(
    _BPF_OPTIONS,
    detector="""
        import errno, socket
        def attach():
            mine, _ = socket.socketpair()
            try:
                mine.setsockopt(socket.SOL_SOCKET, *OPTION)
            except OSError as error:
                # Anything else was said by the kernel, about what it was given.
                if error.errno not in (errno.EPERM, errno.ENOPROTOOPT):
                    return error
                raise
            return OPTION
        judge(attach)
    """,
    attack="OPTION = ({row})",
    control="OPTION = (7, 65536)  # SO_SNDBUF",
    config=_CONFIG,
)

FILTER_STAYS = build_probe(
    "a_filter_cannot_be_taken_off",
    detector=CALL,
    attack="""
        import ctypes
        def ACT():
            libc = ctypes.CDLL(None, use_errno=True)
            # prctl(PR_SET_SECCOMP, disabled), then prctl(PR_SET_NO_NEW_PRIVS, 0)
            if libc.prctl(22, 0, 0, 0, 0) == -1 and libc.prctl(38, 0, 0, 0, 0) == -1:
                raise OSError(ctypes.get_errno(), "refused")
    """,
    control=CALL_CONTROL,
    config=_CONFIG,
)
