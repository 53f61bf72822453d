"""Which system calls a jailed program may make, as data without logic.

All other calls are refused. Known calls fail with EPERM. Calls newer than our tables fail with
ENOSYS, so that a C library that probes for them uses its fallback.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

LOW_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Holds if an argument, combined with a mask, is one of the values.

    Only the low 32 bits are compared: the kernel treats each tested argument as an int or narrower
    and ignores the rest. Comparing more would let stray high bits evade a test while the kernel
    acts on the low ones.
    """

    argument: int
    values: frozenset[int]
    mask: int = LOW_WORD


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allows a call if all conditions of one alternative hold."""

    alternatives: tuple[tuple[Condition, ...], ...]
    refusal: int = errno.EPERM
    ignored: tuple[tuple[Condition, ...], ...] = ()
    """Alternatives under which the call does nothing and reports success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The handling of each system call, by name."""

    allowed: frozenset[str]
    hidden: frozenset[str]
    """Fail with ENOSYS, as on a kernel without them, so that callers use their fallback."""
    rules: Mapping[str, Rule]


_ALLOWED: Final = {
    "files": """
        read write close stat fstat lstat newfstatat statx lseek pread64 pwrite64 readv writev
        preadv pwritev preadv2 pwritev2 access faccessat faccessat2 sendfile copy_file_range splice
        tee flock fsync fdatasync sync syncfs sync_file_range truncate ftruncate fallocate
        fadvise64 readahead dup dup2 dup3 close_range pipe pipe2 memfd_create statfs fstatfs umask
        """,
    "names": """
        getdents getdents64 getcwd chdir fchdir rename renameat renameat2 mkdir mkdirat rmdir link
        linkat unlink unlinkat symlink symlinkat readlink readlinkat chown fchown lchown fchownat
        utime utimes futimesat utimensat inotify_init inotify_init1 inotify_add_watch
        inotify_rm_watch
        """,
    "attributes": """
        setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat listxattr
        llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat
        """,
    "waiting": """
        poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
        epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime
        timerfd_gettime
        """,
    "memory": """
        mmap mprotect munmap brk mremap msync mincore madvise mlock mlock2 munlock mlockall
        munlockall pkey_mprotect pkey_alloc pkey_free membarrier map_shadow_stack mseal
        """,
    "processes": """
        fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open
        pidfd_send_signal getpid getppid getpgid setpgid getpgrp getsid setsid
        """,
    "threads": """
        gettid set_tid_address set_robust_list get_robust_list rseq arch_prctl futex futex_waitv
        futex_wait futex_wake futex_requeue sched_yield sched_setaffinity sched_getaffinity
        sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_setattr
        sched_getattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval getcpu
        """,
    "signals": """
        rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo
        rt_tgsigqueueinfo rt_sigsuspend sigaltstack pause restart_syscall
        """,
    "clocks": """
        nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getitimer
        setitimer alarm timer_create timer_settime timer_gettime timer_getoverrun timer_delete
        """,
    "identity": """
        getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid
        setresuid setresgid setfsuid setfsgid setgroups capget capset
        """,
    "resources": """
        getrlimit setrlimit prlimit64 getrusage getpriority setpriority ioprio_get ioprio_set
        sysinfo uname getrandom
        """,
    "sockets": """
        connect accept accept4 bind listen shutdown sendto recvfrom sendmsg recvmsg sendmmsg
        recvmmsg getsockname getpeername getsockopt
        """,
    "ipc": """
        shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open
        mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
        """,
    "confinement": """
        seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
        """,
}

_HIDDEN: Final = {
    # Their arguments are behind a pointer, which a filter cannot read.
    "opaque": "clone3 openat2 io_uring_setup io_uring_enter io_uring_register",
    "kernel attack surface": """
        userfaultfd memfd_secret io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents
        """,
    "newer twins": "statmount listmount file_getattr file_setattr",
}

# CLONE_NEWTIME (0x80) is missing on purpose: in clone() that bit belongs to the exit signal.
_CLONE_NEW: Final = 0x7E020000
# A sibling would be a child of the program's parent, outside of the program's namespaces.
_CLONE_PARENT: Final = 0x00008000
_PLAIN_CLONE: Final = Condition(argument=0, mask=_CLONE_NEW | _CLONE_PARENT, values=frozenset({0}))

_SET_ID_BITS: Final = 0o6000
_O_CREAT: Final = 0o100
_O_TMPFILE: Final = 0o20000000
_FILE_TYPE: Final = 0o170000
_PLAIN_FILE_TYPES: Final = frozenset({0, 0o100000, 0o010000, 0o140000})


def _plain_mode(argument: int) -> Condition:
    # A set-id file in a workspace outlives the jail and runs on the host as its owner.
    return Condition(argument=argument, mask=_SET_ID_BITS, values=frozenset({0}))


def _plain_node(argument: int) -> Rule:
    mask = _FILE_TYPE | _SET_ID_BITS
    node = Condition(argument=argument, mask=mask, values=_PLAIN_FILE_TYPES)
    return Rule(alternatives=((node,),))


def _plain_open(*, flags: int, mode: int) -> Rule:
    # Without either flag the kernel ignores the mode, and callers leave arbitrary values in it.
    creates_nothing = Condition(argument=flags, mask=_O_CREAT | _O_TMPFILE, values=frozenset({0}))
    return Rule(alternatives=((creates_nothing,), (_plain_mode(mode),)))


_IOCTLS: Final = frozenset(
    {
        *(0x5401, 0x5402, 0x5403, 0x5404),  # TCGETS, TCSETS, TCSETSW, TCSETSF
        *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),  # the same four with free baud rates
        *(0x5409, 0x540A, 0x540B, 0x5425),  # TCSBRK, TCXONC, TCFLSH, TCSBRKP
        *(0x540E, 0x5422, 0x5429),  # TIOCSCTTY, TIOCNOTTY, TIOCGSID
        *(0x540F, 0x5410),  # TIOCGPGRP, TIOCSPGRP
        *(0x5413, 0x5414),  # TIOCGWINSZ, TIOCSWINSZ
        *(0x541B, 0x5411),  # FIONREAD, TIOCOUTQ
        *(0x5421, 0x5450, 0x5451, 0x5452),  # FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC
        *(0x80045430, 0x40045431, 0x5441),  # TIOCGPTN, TIOCSPTLCK, TIOCGPTPEER
    }
)
"""Terminals and descriptors. TIOCSTI and TIOCLINUX, which inject terminal input, stay out."""

_INTERFACE_IOCTLS: Final = frozenset(
    {
        *(0x8910, 0x8912, 0x8913, 0x8933),  # SIOCGIFNAME, SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFINDEX
        *(0x8915, 0x8919, 0x891B, 0x8921),  # SIOCGIFADDR, -BRDADDR, -NETMASK, -MTU
    }
)
"""Reading the network interfaces, which Java does before it opens a connection."""

_PRCTLS: Final = frozenset(
    {
        *(1, 2, 3, 4),  # parent-death signal, dumpable
        *(7, 8, 15, 16),  # keep capabilities, name
        *(21, 22, 23, 24, 27, 28, 47),  # seccomp, bounding set, secure bits, ambient set
        *(25, 26, 29, 30),  # time stamp counter, timer slack
        *(36, 37, 38, 39, 40, 41, 42),  # subreaper, no_new_privs, tid address, huge pages
        *(50, 51, 54, 55, 56, 60, 61, 63, 64),  # vector lengths, pointer signing and tagging
        *(52, 53, 65, 66, 74, 75, 76),  # speculation, deny-write-execute, shadow stack
        *(0x53564D41, 0x41555856),  # PR_SET_VMA (names of mappings), PR_GET_AUXV
    }
)
"""PR_SET_MM, PR_SET_PTRACER, memory merging and core scheduling affect other processes."""

_FILE_COMMANDS: Final = frozenset(
    {
        *range(18),  # duplicates, flags, locks, owners and signals
        *(36, 37, 38),  # locks that belong to an open file
        *(1025, 1027, 1028, 1029),  # F_GETLEASE, F_DUPFD_QUERY, F_CREATED_QUERY, F_CANCELLK
        *range(1030, 1041),  # F_DUPFD_CLOEXEC, sizes of pipes, seals, hints
    }
)
"""Without F_SETLEASE and F_NOTIFY: a reader of a host file could delay its writers."""

_PERSONALITIES: Final = frozenset({0, LOW_WORD})
"""Plain Linux, and the query. Flags disable protections, such as address randomization."""

_SOL_SOCKET: Final = 1
_PROTOCOL_LEVELS: Final = frozenset({0, 6, 17, 41})
"""IP, TCP, UDP and IPv6."""
_BPF_OPTIONS: Final = frozenset({26, 44, 50, 51, 52})
"""SO_ATTACH_FILTER, -LOCK_FILTER, -ATTACH_BPF, -ATTACH_REUSEPORT_CBPF, -ATTACH_REUSEPORT_EBPF.

Each filter is compiled into kernel memory that all users of the machine share
(`net.core.bpf_jit_limit`) and that no limit of a program counts.
"""
_SOCKET_OPTIONS: Final = frozenset(range(128)) - _BPF_OPTIONS
_BUFFER_SIZES: Final = frozenset({7, 8, 32, 33})
"""SO_SNDBUF, SO_RCVBUF, and both -FORCE."""

_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_UNIX_TYPES: Final = frozenset({1, 2, 5})
"""SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET."""
_CONNECTED_UNIX_TYPES: Final = frozenset({1, 5})
"""Without SOCK_DGRAM: one end of such a pair can still send to any other socket by its path."""
_INTERNET_TYPES: Final = frozenset({1, 2})
"""On the internet, SOCK_SEQPACKET is SCTP, and SOCK_RAW and SOCK_PACKET forge packets."""
_INTERNET_PROTOCOLS: Final = frozenset({0, 6, 17})
"""The default, TCP and UDP: others load rarely used kernel modules."""
_SOCKET_TYPE: Final = 0xF


def _socket_kind(families: frozenset[int], types: frozenset[int]) -> tuple[Condition, ...]:
    return (
        Condition(argument=0, values=families),
        Condition(argument=1, mask=_SOCKET_TYPE, values=types),
    )


_UNIX_SOCKET: Final = _socket_kind(frozenset({_AF_UNIX}), _UNIX_TYPES)
_CONNECTED_PAIR: Final = _socket_kind(frozenset({_AF_UNIX}), _CONNECTED_UNIX_TYPES)
_INTERNET_SOCKET: Final = (
    *_socket_kind(frozenset({_AF_INET, _AF_INET6}), _INTERNET_TYPES),
    Condition(argument=2, values=_INTERNET_PROTOCOLS),
)


def _one_of(values: frozenset[int], *, argument: int, refusal: int = errno.EPERM) -> Rule:
    condition = Condition(argument=argument, values=values)
    return Rule(alternatives=((condition,),), refusal=refusal)


_SOCKET_OPTION: Final = Rule(
    alternatives=(
        (
            Condition(argument=1, values=frozenset({_SOL_SOCKET})),
            Condition(argument=2, values=_SOCKET_OPTIONS),
        ),
        (Condition(argument=1, values=_PROTOCOL_LEVELS),),
    ),
    # As on a kernel without the option.
    refusal=errno.ENOPROTOOPT,
)

_PLAIN_BUFFERS: Final = replace(
    _SOCKET_OPTION,
    ignored=(
        (
            Condition(argument=1, values=frozenset({_SOL_SOCKET})),
            Condition(argument=2, values=_BUFFER_SIZES),
        ),
    ),
)
"""The kernel caps a size above its maximum without an error; here the default is the maximum."""

_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "clone": Rule(alternatives=((_PLAIN_CLONE,),)),
        "open": _plain_open(flags=1, mode=2),
        "openat": _plain_open(flags=2, mode=3),
        "creat": Rule(alternatives=((_plain_mode(1),),)),
        "chmod": Rule(alternatives=((_plain_mode(1),),)),
        "fchmod": Rule(alternatives=((_plain_mode(1),),)),
        "fchmodat": Rule(alternatives=((_plain_mode(2),),)),
        "fchmodat2": Rule(alternatives=((_plain_mode(2),),)),
        "mknod": _plain_node(1),
        "mknodat": _plain_node(2),
        "socket": Rule(alternatives=(_UNIX_SOCKET, _INTERNET_SOCKET)),
        "socketpair": Rule(alternatives=(_UNIX_SOCKET,)),
        "ioctl": _one_of(_IOCTLS | _INTERFACE_IOCTLS, argument=1, refusal=errno.ENOTTY),
        "fcntl": _one_of(_FILE_COMMANDS, argument=1, refusal=errno.EINVAL),
        "prctl": _one_of(_PRCTLS, argument=0, refusal=errno.EINVAL),
        "personality": _one_of(_PERSONALITIES, argument=0),
        "setsockopt": _SOCKET_OPTION,
    }
)

_LISTENING_IOCTLS: Final = frozenset({0xC0502100, 0xC0182101, 0x40082102, 0x40182103})
"""The calls with which PID 1 receives and answers requests, see `landlock_chmod.py`."""
_ITSELF: Final = frozenset({0})
_PRIO_PROCESS: Final = frozenset({0})
_IOPRIO_WHO_PROCESS: Final = frozenset({1})


def _on_itself(kind: frozenset[int]) -> Rule:
    conditions = (Condition(argument=0, values=kind), Condition(argument=1, values=_ITSELF))
    return Rule(alternatives=(conditions,))


_AMONG_OTHERS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "setpriority": _on_itself(_PRIO_PROCESS),
        "ioprio_set": _on_itself(_IOPRIO_WHO_PROCESS),
        "prlimit64": _one_of(_ITSELF, argument=0),
        "sched_setaffinity": _one_of(_ITSELF, argument=0),
        "sched_setattr": _one_of(_ITSELF, argument=0),
        "sched_setparam": _one_of(_ITSELF, argument=0),
        "sched_setscheduler": _one_of(_ITSELF, argument=0),
        "socket": Rule(alternatives=()),
        "socketpair": Rule(alternatives=(_CONNECTED_PAIR,)),
        "ioctl": _one_of(_IOCTLS | _LISTENING_IOCTLS, argument=1, refusal=errno.ENOTTY),
    }
)
"""Rules for a program that can reach processes and sockets of the same user outside."""
_BY_ADDRESS: Final = "connect bind listen accept accept4"
"""Useless for the two ends of a socket pair, which are already connected."""

_NO_ATTRIBUTES: Final = Rule(alternatives=(), refusal=errno.ENOTSUP)
_OLD_TWINS: Final = frozenset({"fchmodat2", "utime", "utimes", "futimesat"})
"""Hidden variants of mediated calls; callers fall back to the mediated ones."""
_INSTANCES_OF_THE_USER: Final = frozenset({"inotify_init", "inotify_init1"})
"""The kernel gives each user few (128), and only a user namespace has a separate limit."""
_OWNERSHIP: Final = "chown fchown lchown fchownat"
_SET_ATTRIBUTES: Final = """
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
    """
"""Landlock allows both on every file of the user, and few programs need them."""


def build_policy(*, own_namespaces: bool = True, counted_memory: bool = True) -> Policy:
    """Build the policy for a jailed program.

    Internet sockets reach the loopback of its own network namespace and its allowed hosts. Without
    namespaces, the program may use nothing with a name or number on the host: no shared memory,
    queues, unconnected sockets or other processes. Memory that belongs to no process, and large
    socket buffers, are allowed only if a control group counts them.
    """
    refused, hidden = set[str](), set(_names(_HIDDEN))
    rules = dict(_RULES)
    if not own_namespaces:
        rules |= _AMONG_OTHERS
        refused.update(_OWNERSHIP.split(), _BY_ADDRESS.split())
        # As on a file system without attributes: programs that copy files continue without them.
        rules |= dict.fromkeys(_SET_ATTRIBUTES.split(), _NO_ATTRIBUTES)
        hidden |= _OLD_TWINS | _INSTANCES_OF_THE_USER
    if not (own_namespaces and counted_memory):
        refused.update(_ALLOWED["ipc"].split())
    if not counted_memory:
        refused.add("memfd_create")
        rules["setsockopt"] = _PLAIN_BUFFERS
    return Policy(
        allowed=_names(_ALLOWED) - refused - hidden - rules.keys(),
        hidden=frozenset(hidden),
        rules={name: rule for name, rule in rules.items() if name not in hidden},
    )


def _names(groups: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for names in groups.values() for name in names.split())
