"""Attacks on the host's kernel: system calls and interfaces that no program needs.

Every call has arguments that do nothing even where it is allowed.
"""

from dataclasses import dataclass, replace

from assay.contracts.execution import Isolation, Reason
from assay.selftest.security_tests.attack import AttackConfig, HostileCase
from assay.selftest.security_tests.probe import (
    CALL,
    CALL_CONTROL,
    MAKE_SOCKET,
    MAKE_SOCKET_CONTROL,
    probing,
)

_TERMS = AttackConfig(group="kernel_surface", not_applicable_from=Isolation.KERNEL)

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


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    x86_64: int
    aarch64: int | None
    arguments: tuple[int | str, ...] = (-1, 0, 0, 0, 0)
    forks: bool = False

    def case(self, terms: AttackConfig = _TERMS) -> HostileCase:
        numbers = {"x86_64": self.x86_64}
        if self.aarch64 is not None:
            numbers["aarch64"] = self.aarch64
        return probing(
            f"{self.name}_is_refused",
            detector=_SYSCALL,
            attack=f"NUMBERS, ARGUMENTS, FORKS = {numbers}, {list(self.arguments)}, {self.forks}",
            control=_SYSCALL_CONTROL,
            terms=terms,
        )


_INTRUSIVE = (
    _Call("io_uring_setup", 425, 425, (8, "HERE")),
    _Call("io_uring_enter", 426, 426),
    _Call("io_uring_register", 427, 427),
    _Call("bpf", 321, 280, (0, "HERE", 72)),
    _Call("userfaultfd", 323, 282, (0,)),
    _Call("perf_event_open", 298, 241, ("HERE", 0, -1, -1, 0)),
    _Call("keyctl", 250, 219, (0, -3, 0)),
    _Call("add_key", 248, 217, (0, 0, 0, 0, 0)),
    _Call("request_key", 249, 218, (0, 0, 0, 0)),
    _Call("ptrace", 101, 117, (0, 0, 0, 0)),
    _Call("process_vm_readv", 310, 270, (1, "HERE", 1, "HERE", 1, 0)),
    _Call("process_vm_writev", 311, 271, (1, "HERE", 1, "HERE", 1, 0)),
    _Call("process_madvise", 440, 440),
    _Call("pidfd_getfd", 438, 438, (-1, 0, 0)),
    _Call("kcmp", 312, 272, (1, 1, 0, 0, 0)),
    _Call("memfd_secret", 447, 447, (0,)),
    _Call("vmsplice", 278, 75, (-1, "HERE", 1, 0)),
    _Call("fanotify_init", 300, 262, (0, 0)),
    _Call("name_to_handle_at", 303, 264),
    _Call("open_by_handle_at", 304, 265, (-1, "HERE", 0)),
    _Call("lookup_dcookie", 212, 18, (0, 0, 0)),
    _Call("a_personality_of_executable_data", 135, 92, (_READ_IMPLIES_EXEC,)),
    _Call("a_personality_without_random_addresses", 135, 92, (_ADDR_NO_RANDOMIZE,)),
    _Call("modify_ldt", 154, None, (0, "HERE", 16)),
    _Call("move_pages", 279, 239, (1, 0, 0, 0, 0, 0)),
    _Call("migrate_pages", 256, 238, (1, 0, 0, 0)),
    _Call("syslog", 103, 116, (10, 0, 0)),
)

_ADMINISTRATIVE = (
    _Call("mount", 165, 40, (0, "HERE", 0, 0, 0)),
    _Call("umount2", 166, 39, ("HERE", 0)),
    _Call("pivot_root", 155, 41, ("HERE", "HERE")),
    _Call("chroot", 161, 51, ("HERE",)),
    _Call("fsopen", 430, 430, (0, 0)),
    _Call("fsconfig", 431, 431),
    _Call("fsmount", 432, 432),
    _Call("fspick", 433, 433),
    _Call("open_tree", 428, 428),
    _Call("move_mount", 429, 429),
    _Call("mount_setattr", 442, 442),
    _Call("kexec_load", 246, 104, (0, 0, 0, 0)),
    _Call("kexec_file_load", 320, 294),
    _Call("init_module", 175, 105, (0, 0, 0)),
    _Call("finit_module", 313, 273, (-1, 0, 0)),
    _Call("delete_module", 176, 106, (0, 0)),
    _Call("swapon", 167, 224, (0, 0)),
    _Call("swapoff", 168, 225, (0,)),
    _Call("reboot", 169, 142, (0, 0, 0, 0)),
    _Call("settimeofday", 164, 170, (0, "HERE")),
    _Call("clock_settime", 227, 112, (0, 0)),
    _Call("sethostname", 170, 161, (0, -1)),
    _Call("setdomainname", 171, 162, (0, -1)),
    _Call("acct", 163, 89, (0,)),
    _Call("quotactl", 179, 60, (0, 0, 0, 0)),
    _Call("vhangup", 153, 58, ()),
    _Call("iopl", 172, None, (3,)),
    _Call("ioperm", 173, None, (0, 1, 1)),
)

_NAMESPACES = (
    _Call("unsharing_a_user_namespace", 272, 97, (_NEW_USER,)),
    _Call("unsharing_a_mount_namespace", 272, 97, (_NEW_NAMESPACE,)),
    _Call("setns", 308, 268, (-1, 0)),
    _Call("cloning_into_a_user_namespace", 56, 220, (_NEW_USER | _SIGCHLD, 0, 0, 0, 0), forks=True),
    _Call("clone_with_stray_high_bits", 56, 220, (_NEW_USER | _SIGCHLD | 1 << 40, 0, 0, 0, 0),
          forks=True),
)  # fmt: skip

_DOORS = (
    _Call("making_a_device", 259, 33, (-100, "HERE", _CHARACTER_DEVICE, 0x101)),
    _Call("pushing_input_into_a_terminal", 16, 29, (-1, _TIOCSTI, "HERE")),
    _Call("pushing_input_with_stray_high_bits", 16, 29, (-1, _TIOCSTI | 1 << 32, "HERE")),
    _Call("the_console_ioctl", 16, 29, (-1, 0x541C, "HERE")),
    _Call("the_x32_way_in", 39 | _X32, None, ()),
    _Call("the_x32_way_to_open", 2 | _X32, None, ("HERE", 0, 0)),
)

CALLS = tuple(
    call.case() for table in (_INTRUSIVE, _ADMINISTRATIVE, _NAMESPACES, _DOORS) for call in table
)

OTHER_PROGRAMS = tuple(
    replace(case, name=f"{case.name}_to_other_programs_too")
    for case in (
        _Call("io_uring_setup", 425, 425, (8, "HERE")).case(replace(_TERMS, by_command=True)),
        _Call("unsharing_a_user_namespace", 272, 97, (_NEW_USER,)).case(
            replace(_TERMS, by_command=True)
        ),
        _Call("ptrace", 101, 117, (0, 0, 0, 0)).case(replace(_TERMS, by_command=True)),
    )
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

CLONE3 = probing(
    "clone3_into_a_user_namespace_is_refused",
    detector=_CLONE3,
    attack=f"NUMBER, FLAGS = 435, {_NEW_USER}",
    control="""
        import platform
        NUMBER, FLAGS = {"x86_64": 39, "aarch64": 172}[platform.machine()], 0
    """,
    terms=_TERMS,
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

THIRTY_TWO_BITS = probing(
    "the_32_bit_way_in_is_refused",
    detector=_MACHINE_CODE,
    # mov eax, 20 (getpid of the old table); int 0x80; ret
    attack="CODE, CONTROL = bytes.fromhex('b814000000cd80c3'), False",
    # mov eax, 39 (getpid); syscall; ret
    control="CODE, CONTROL = bytes.fromhex('b8270000000f05c3'), True",
    terms=_TERMS.ending(Reason.SIGNALLED),
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

SOCKET_FAMILIES = tuple(
    probing(
        f"a_socket_of_family_{name}_is_refused",
        detector=MAKE_SOCKET,
        attack=f"MAKE = lambda socket: socket.socket{arguments}",
        control=MAKE_SOCKET_CONTROL,
        terms=_TERMS,
    )
    for name, arguments in _FAMILIES.items()
)

_BPF_OPTIONS = {
    "a_socket_filter_is_refused": "26, b'\\0' * 16",
    "a_filter_for_ports_in_common_is_refused": "51, b'\\0' * 16",
    "locking_a_socket_filter_is_refused": "44, 1",
}

SOCKET_FILTERS = tuple(
    probing(
        name,
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
        attack=f"OPTION = ({option})",
        control="OPTION = (7, 65536)  # SO_SNDBUF",
        terms=_TERMS,
    )
    for name, option in _BPF_OPTIONS.items()
)

FILTER_STAYS = probing(
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
    terms=_TERMS,
)
