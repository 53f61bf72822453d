import errno
import fcntl
import itertools
import os
import signal
import socket

import pytest

from assay.sandbox.native.guest.landlock_chmod import FOLDERS_OPENED, MEDIATED
from assay.sandbox.native.kernel import syscalls
from assay.sandbox.native.kernel.seccomp import (
    ALLOW,
    ASK,
    REFUSE,
    build_asking_filter,
    build_filter,
)
from assay.sandbox.native.kernel.seccomp_policy import build_policy
from tests.support.filters import X32_BIT, Filter, described, filter_for, names_by_number

MACHINES = sorted(syscalls.NUMBERS)


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


DENIED = names(
    """
    _sysctl acct add_key adjtimex afs_syscall bpf cachestat chroot clock_adjtime clock_settime
    create_module delete_module epoll_ctl_old epoll_wait_old fanotify_init fanotify_mark
    finit_module fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy get_thread_area
    getpmsg init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl listns lookup_dcookie
    lsm_get_self_attr lsm_list_modules lsm_set_self_attr mbind migrate_pages modify_ldt mount
    mount_setattr move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at open_tree
    open_tree_attr perf_event_open pidfd_getfd pivot_root process_madvise process_mrelease
    process_vm_readv process_vm_writev ptrace putpmsg query_module quotactl quotactl_fd reboot
    remap_file_pages request_key security set_mempolicy set_mempolicy_home_node set_thread_area
    setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog tuxcall umount2 unshare
    uprobe uretprobe uselib ustat vhangup vmsplice vserver
    """
)
HIDDEN = names(
    """
    clone3 openat2 io_uring_setup io_uring_enter io_uring_register userfaultfd memfd_secret
    io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents statmount listmount
    file_getattr file_setattr
    """
)
DEPENDS_ON_ARGUMENTS = names(
    """
    clone open openat creat chmod fchmod fchmodat fchmodat2 mknod mknodat socket socketpair ioctl
    fcntl prctl personality setsockopt
    """
)

every_machine = pytest.mark.parametrize("machine", MACHINES)
every_tier = pytest.mark.parametrize("own_namespaces", [True, False], ids=["own", "shared"])


@every_machine
def test_every_call_gets_the_answer_written_down_for_it(machine: str) -> None:
    chosen = filter_for(machine)
    expected = {
        **dict.fromkeys(syscalls.NUMBERS[machine], "allow"),
        **dict.fromkeys(DENIED, "EPERM"),
        **dict.fromkeys(HIDDEN, "ENOSYS"),
    }

    for name in syscalls.NUMBERS[machine].keys() - DEPENDS_ON_ARGUMENTS:
        assert (name, chosen.says(name)) == (name, expected[name])


@every_machine
def test_every_name_in_the_policy_is_a_system_call_somewhere(machine: str) -> None:
    policy = build_policy()
    named = policy.allowed | policy.hidden | policy.rules.keys()

    assert named <= syscalls.NUMBERS["x86_64"].keys() | syscalls.NUMBERS["aarch64"].keys()
    assert policy.rules.keys() == DEPENDS_ON_ARGUMENTS
    assert policy.allowed.isdisjoint(policy.hidden | policy.rules.keys()), machine


@every_machine
def test_a_number_without_a_name_looks_like_an_old_kernel(machine: str) -> None:
    chosen = filter_for(machine)
    known = names_by_number(machine)

    for number in itertools.chain(range(2000), (X32_BIT - 1,)):
        if number not in known:
            assert described(chosen.answer(number).action) == "ENOSYS", number


@every_machine
@pytest.mark.parametrize("arch", [0, 0x40000003, 0x40000028, 0xC00000F3])
def test_a_call_by_another_convention_kills(machine: str, arch: int) -> None:
    chosen = filter_for(machine)

    for number in syscalls.NUMBERS[machine].values():
        assert described(chosen.answer(number, arch=arch).action) == "kill"


def test_each_machine_kills_the_calls_of_the_other() -> None:
    for machine, other in itertools.permutations(MACHINES, 2):
        action = filter_for(machine).answer(0, arch=syscalls.AUDIT_ARCH[other]).action

        assert described(action) == "kill"


def test_a_call_by_the_x32_convention_kills() -> None:
    chosen = filter_for("x86_64")

    for number in (0, 1, 59, 101, 520, 0x3FFFFFFF, 0x80000000, 0xBFFFFFFF):
        assert described(chosen.answer(X32_BIT | number).action) == "kill", number


@every_machine
@pytest.mark.parametrize(
    "flag",
    [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000],
    ids=["mnt", "cgroup", "uts", "ipc", "user", "pid", "net"],
)
def test_clone_cannot_make_a_namespace(machine: str, flag: int) -> None:
    chosen = filter_for(machine)

    assert chosen.says("clone", flag) == "EPERM"
    assert chosen.says("clone", flag | signal.SIGCHLD) == "EPERM"


@every_machine
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(17, id="fork"),
        pytest.param(0x4111, id="vfork"),
        pytest.param(0x01200011, id="glibc's fork"),
        pytest.param(0x003D0F00, id="a thread"),
        pytest.param(0x00001011, id="with a pidfd"),
        pytest.param(0xFF, id="any exit signal, whose bits are CLONE_NEWTIME to clone3"),
    ],
)
def test_clone_makes_processes_and_threads(machine: str, flags: int) -> None:
    assert filter_for(machine).says("clone", flags) == "allow"


FAMILIES = range(64)
TYPES = range(16)
SOCK_CLOEXEC_AND_NONBLOCK = 0o2004000


@every_machine
def test_without_namespaces_there_are_only_connected_pairs(machine: str) -> None:
    chosen = filter_for(machine, own_namespaces=False)

    for family, kind in itertools.product(FAMILIES, TYPES):
        expected = "allow" if family == socket.AF_UNIX and kind in {1, 5} else "EPERM"
        assert chosen.says("socket", family, kind) == "EPERM", (family, kind)
        for flags in (0, SOCK_CLOEXEC_AND_NONBLOCK):
            assert chosen.says("socketpair", family, kind | flags) == expected, (family, kind)
    for name in ("connect", "bind", "listen", "accept", "accept4"):
        assert chosen.says(name) == "EPERM", name


@every_machine
def test_with_namespaces_sockets_are_local_or_tcp_or_udp(machine: str) -> None:
    chosen = filter_for(machine)
    internet = {socket.AF_INET, socket.AF_INET6}

    for family, kind in itertools.product(FAMILIES, TYPES):
        local = family == socket.AF_UNIX and kind in {1, 2, 5}
        good = local or (family in internet and kind in {1, 2})
        for flags in (0, SOCK_CLOEXEC_AND_NONBLOCK):
            answer = chosen.says("socket", family, kind | flags)
            assert answer == ("allow" if good else "EPERM"), (family, kind)
            answer = chosen.says("socketpair", family, kind | flags)
            assert answer == ("allow" if local else "EPERM"), (family, kind)


@every_machine
def test_only_tcp_and_udp_are_spoken(machine: str) -> None:
    chosen = filter_for(machine)

    for protocol in range(300):
        expected = "allow" if protocol in {0, socket.IPPROTO_TCP, socket.IPPROTO_UDP} else "EPERM"
        assert chosen.says("socket", socket.AF_INET, 1, protocol) == expected


@every_machine
@every_tier
@pytest.mark.parametrize(
    "request_code",
    [
        pytest.param(0x5412, id="TIOCSTI"),
        pytest.param(0x541C, id="TIOCLINUX"),
        pytest.param(0x5423, id="TIOCSETD"),
        pytest.param(0x541D, id="TIOCCONS"),
        pytest.param(0x8946, id="SIOCETHTOOL"),
        pytest.param(0x40086602, id="FS_IOC_SETFLAGS"),
    ],
)
def test_ioctl_cannot_type_into_a_terminal_or_set_anything_up(
    machine: str, request_code: int, *, own_namespaces: bool
) -> None:
    chosen = filter_for(machine, own_namespaces=own_namespaces)

    assert chosen.says("ioctl", 0, request_code) == "ENOTTY"


@every_machine
def test_only_without_namespaces_calls_are_asked_about(machine: str) -> None:
    receive = 0xC0502100

    assert filter_for(machine).says("ioctl", 0, receive) == "ENOTTY"
    assert filter_for(machine, own_namespaces=False).says("ioctl", 0, receive) == "allow"


@every_machine
def test_ioctl_serves_terminals_and_descriptors(machine: str) -> None:
    chosen = filter_for(machine)

    for code in (0x5401, 0x5402, 0x540F, 0x5410, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451):
        assert chosen.says("ioctl", 0, code) == "allow", hex(code)


@every_machine
@every_tier
def test_files_can_be_locked_and_not_leased(machine: str, *, own_namespaces: bool) -> None:
    chosen = filter_for(machine, own_namespaces=own_namespaces)
    commands = ("F_DUPFD", "F_SETFL", "F_SETLK", "F_OFD_SETLKW", "F_DUPFD_CLOEXEC", "F_ADD_SEALS")

    for name in commands:
        assert chosen.says("fcntl", 3, getattr(fcntl, name)) == "allow", name
    for name in ("F_SETLEASE", "F_NOTIFY"):
        assert chosen.says("fcntl", 3, getattr(fcntl, name)) == "EINVAL", name


@every_machine
def test_interfaces_can_be_read_only_with_a_network_of_its_own(machine: str) -> None:
    siocgifconf = 0x8912

    assert filter_for(machine).says("ioctl", 3, siocgifconf) == "allow"
    assert filter_for(machine, own_namespaces=False).says("ioctl", 3, siocgifconf) == "ENOTTY"


@every_machine
@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o6000])
def test_no_file_becomes_set_id(machine: str, bits: int) -> None:
    chosen = filter_for(machine)
    mode_at = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1}

    for name in mode_at.keys() & syscalls.NUMBERS[machine].keys():
        before = [0o6777] * mode_at[name]
        assert chosen.says(name, *before, 0o1777) == "allow", name
        assert chosen.says(name, *before, 0o755 | bits) == "EPERM", name


@every_machine
@pytest.mark.parametrize(("name", "flags_at"), [("open", 1), ("openat", 2)])
def test_no_file_is_created_set_id(machine: str, name: str, flags_at: int) -> None:
    if name not in syscalls.NUMBERS[machine]:
        return
    chosen = filter_for(machine)
    before = [0o6777] * flags_at

    for flag in (os.O_CREAT, os.O_CREAT | os.O_EXCL, os.O_TMPFILE):
        assert chosen.says(name, *before, flag | os.O_RDWR, 0o644) == "allow"
        assert chosen.says(name, *before, flag | os.O_RDWR, 0o4755) == "EPERM"
    assert chosen.says(name, *before, os.O_RDWR, 0xFFFFFFFF) == "allow", "the mode means nothing"


@every_machine
@pytest.mark.parametrize(("name", "mode_at"), [("mknod", 1), ("mknodat", 2)])
def test_mknod_makes_no_devices(machine: str, name: str, mode_at: int) -> None:
    if name not in syscalls.NUMBERS[machine]:
        return
    chosen = filter_for(machine)
    before = [0] * mode_at

    for kind in range(16):
        expected = "allow" if kind << 12 in {0, 0o100000, 0o010000, 0o140000} else "EPERM"
        assert chosen.says(name, *before, kind << 12 | 0o644) == expected, kind
        assert chosen.says(name, *before, kind << 12 | 0o4644) == "EPERM"


@every_machine
def test_prctl_reaches_nobody_else(machine: str) -> None:
    chosen = filter_for(machine)
    pr_set_mm, pr_set_ptracer, pr_sched_core, pr_set_memory_merge = 35, 0x59616D61, 62, 67

    for option in (pr_set_mm, pr_set_ptracer, pr_sched_core, pr_set_memory_merge, 9999):
        assert chosen.says("prctl", option) == "EINVAL", option
    for option in (1, 4, 15, 22, 38, 47, 0x53564D41):
        assert chosen.says("prctl", option) == "allow", option


@every_machine
def test_personality_stays_linux(machine: str) -> None:
    chosen = filter_for(machine)
    read_implies_exec, mmap_page_zero, linux32 = 0x0400000, 0x0100000, 8

    no_randomization = 0x0040000

    for persona in (0, 0xFFFFFFFF):
        assert chosen.says("personality", persona) == "allow"
    for persona in (read_implies_exec, mmap_page_zero, linux32, no_randomization, 0x0440000):
        assert chosen.says("personality", persona) == "EPERM"


@every_machine
def test_sockets_get_no_filters(machine: str) -> None:
    chosen = filter_for(machine)
    attach, lock, reuse_port = 26, 44, 51

    for option in (attach, lock, reuse_port):
        assert chosen.says("setsockopt", 3, socket.SOL_SOCKET, option) == "ENOPROTOOPT", option
    for option in (socket.SO_REUSEADDR, socket.SO_SNDBUF, socket.SO_KEEPALIVE, socket.SO_LINGER):
        assert chosen.says("setsockopt", 3, socket.SOL_SOCKET, option) == "allow", option
    assert chosen.says("setsockopt", 3, socket.IPPROTO_TCP, socket.TCP_NODELAY) == "allow"
    assert chosen.says("setsockopt", 3, 255, 1) == "ENOPROTOOPT", "a level that no socket has"


@pytest.mark.parametrize("machine", MACHINES)
def test_where_nobody_counts_them_buffers_of_sockets_keep_their_size(machine: str) -> None:
    chosen = Filter(build_filter(counted_memory=False, machine=machine), machine)
    number = syscalls.NUMBERS[machine]["setsockopt"]
    force_send, force_receive = 32, 33

    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, force_send, force_receive):
        action = chosen.answer(number, 3, socket.SOL_SOCKET, option).action
        assert action == REFUSE, "without an errno: it does nothing and succeeds"
    assert chosen.says("setsockopt", 3, socket.SOL_SOCKET, socket.SO_REUSEADDR) == "allow"
    assert chosen.says("setsockopt", 3, socket.IPPROTO_TCP, socket.SO_SNDBUF) == "allow"
    assert chosen.says("setsockopt", 3, socket.SOL_SOCKET, 26) == "ENOPROTOOPT"


def without_namespaces(machine: str) -> Filter:
    return Filter(build_filter(own_namespaces=False, machine=machine), machine)


@pytest.mark.parametrize("machine", MACHINES)
def test_without_namespaces_owners_and_attributes_stay_as_they_are(machine: str) -> None:
    filtered = without_namespaces(machine)

    assert filtered.says("fchownat") == "EPERM"
    assert filtered.says("fsetxattr") == filtered.says("setxattrat") == described_refusal("ENOTSUP")
    assert filtered.says("getxattr") == "allow"


def described_refusal(name: str) -> str:
    return errno.errorcode[getattr(errno, name)]


@pytest.mark.parametrize("machine", MACHINES)
def test_without_namespaces_no_twin_of_a_mediated_call_gets_past(machine: str) -> None:
    filtered = without_namespaces(machine)
    twins = {"fchmodat2", "utime", "utimes", "futimesat"} & syscalls.NUMBERS[machine].keys()

    assert {filtered.says(name) for name in twins} == {"ENOSYS"}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_asking_filter_asks_about_what_is_mediated_and_about_nothing_else(machine: str) -> None:
    asking = Filter(build_asking_filter(MEDIATED, FOLDERS_OPENED, machine=machine), machine)

    numbers = syscalls.NUMBERS[machine]
    asked = {name for name, number in numbers.items() if asking.answer(number).action == ASK}
    passed = {name for name, number in numbers.items() if asking.answer(number).action == ALLOW}

    assert asked == numbers.keys() & set(MEDIATED)
    assert asked | passed == numbers.keys()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("flags", "action"),
    [
        (os.O_DIRECTORY, ASK),
        (os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC, ASK),
        (os.O_RDONLY, ALLOW),
        (os.O_DIRECTORY | os.O_NOFOLLOW, ALLOW),
        (os.O_DIRECTORY | os.O_PATH, ALLOW),
        (os.O_TMPFILE | os.O_RDWR, ALLOW),
    ],
)
def test_the_asking_filter_asks_about_folders_that_are_opened_to_be_listed(
    machine: str, flags: int, action: int
) -> None:
    asking = Filter(build_asking_filter(MEDIATED, FOLDERS_OPENED, machine=machine), machine)
    number = syscalls.NUMBERS[machine]["openat"]

    assert asking.answer(number, 0, 0, flags).action == action
