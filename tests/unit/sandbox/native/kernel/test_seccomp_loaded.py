import ctypes
import mmap
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.sandbox.native.kernel import syscalls
from assay.sandbox.native.kernel.seccomp import build_filter, load
from tests.support.forked import outcome_of
from tests.support.requirements import require

X32_BIT = 0x40000000


def call(name: str, *arguments: int | bytes | None) -> int:
    """A system call without the C library's opinion of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given_words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    outcome = int(libc.syscall(ctypes.c_long(syscalls.table()[name]), *given_words))
    if outcome < 0:
        raise OSError(ctypes.get_errno(), name)
    return outcome


def confined(action: Callable[[], object], *, own_namespaces: bool = True) -> str:
    program = build_filter(own_namespaces=own_namespaces)

    def act() -> object:
        load(program)
        return action()

    return outcome_of(act)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("unshare", (0x10000000,), "EPERM"),
        ("clone", (0x10000000 | signal.SIGCHLD, 0, 0, 0, 0), "EPERM"),
        ("clone3", (0, 0), "ENOSYS"),
        ("ptrace", (0, 0, 0, 0), "EPERM"),
        ("bpf", (0, 0, 0), "EPERM"),
        ("keyctl", (0, 0), "EPERM"),
        ("io_uring_setup", (1, 0), "ENOSYS"),
        ("userfaultfd", (0,), "ENOSYS"),
        ("ioctl", (0, 0x5412, 0), "ENOTTY"),
        ("ioctl", (0, 0x1_0000_5412, 0), "ENOTTY"),
        ("prctl", (35, 0, 0, 0, 0), "EINVAL"),
        ("socket", (socket.AF_NETLINK, socket.SOCK_RAW, 0), "EPERM"),
    ],
)
def test_the_kernel_refuses_what_the_filter_refuses(
    name: str, arguments: tuple[int, ...], expected: str
) -> None:
    assert confined(lambda: call(name, *arguments)) == expected


def test_a_confined_process_can_still_fork_wait_and_run_threads() -> None:
    def work() -> int:
        child = os.fork()
        if child == 0:
            os._exit(3)
        _, status = os.waitpid(child, 0)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        socket.socketpair()[0].close()
        mmap.mmap(-1, mmap.PAGESIZE).close()
        return os.waitstatus_to_exitcode(status)

    assert confined(work) == "3"


def test_a_confined_process_leaves_no_set_id_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    assert confined(lambda: file.chmod(0o4755)) == "EPERM"
    assert confined(lambda: os.open(tmp_path / "new", os.O_CREAT | os.O_RDWR, 0o4755)) == "EPERM"
    assert confined(lambda: os.mknod(tmp_path / "new", 0o104755)) == "EPERM"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.stat().st_mode & 0o6000 == 0


def test_a_network_of_its_own_is_for_tcp_and_nothing_rawer() -> None:
    assert confined(lambda: socket.socket().fileno() > 0) == "True"
    assert confined(lambda: call("socket", 2, socket.SOCK_RAW, 1)) == "EPERM"
    assert confined(socket.socket, own_namespaces=False) == "EPERM"


def test_filters_stack() -> None:
    program = build_filter()

    def load_twice() -> int:
        load(program)
        load(program)
        return os.getpid() - os.getpid()

    assert outcome_of(load_twice) == "0"


def test_a_call_by_the_x32_convention_really_kills() -> None:
    machine = syscalls.this_machine()
    require("x86_64", available=machine == "x86_64", why=f"this is {machine}")
    getpid = X32_BIT | syscalls.NUMBERS["x86_64"]["getpid"]

    outcome = confined(lambda: ctypes.CDLL(None).syscall(ctypes.c_long(getpid)))

    assert outcome == f"signal {int(signal.SIGSYS)}"


@pytest.mark.parametrize("program", [b"", b"\0" * 8, b"\0" * 8 * 5000])
def test_what_the_kernel_does_not_take_for_a_filter_is_an_error(program: bytes) -> None:
    assert outcome_of(lambda: load(program)) == "EINVAL"
