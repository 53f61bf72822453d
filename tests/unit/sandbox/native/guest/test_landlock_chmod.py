# ruff: noqa: PTH100, PTH101, PTH208, PTH211, S103 - the calls themselves, as programs make them, are tested

import ctypes
import os
import resource
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.sandbox.native.guest import landlock_chmod
from assay.sandbox.native.kernel import landlock, syscalls
from assay.sandbox.native.kernel import libc as kernel
from tests.support.forked import outcome_of
from tests.support.requirements import require


def mediated(action: Callable[[], object], box: Path) -> str:
    """What an action gives in a process whose changes to files go through its parent."""

    def be_the_first_process() -> object:
        line = landlock_chmod.open_line()
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, outcome_of(lambda: act(line)).encode())
            os._exit(0)
        landlock_chmod.start(line)
        os.wait()
        return os.read(reader, 4096).decode()

    def act(line: landlock_chmod.Line) -> object:
        kernel.forbid_new_privileges()
        landlock_chmod.hand_over(
            line, landlock_chmod.build_mediating_filter(), [str(box), "/dev/null"]
        )
        return action()

    return outcome_of(be_the_first_process).strip("'\"")


@pytest.fixture
def box(tmp_path: Path) -> Path:
    folder = tmp_path / "box"
    folder.mkdir()
    (folder / "own").touch(mode=0o600)
    (tmp_path / "foreign").touch(mode=0o600)
    (tmp_path / "box-beside").touch(mode=0o600)
    return folder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def in_box(box: Path, act: Callable[[], object]) -> Callable[[], object]:
    def from_there() -> object:
        os.chdir(box)
        return act()

    return from_there


@pytest.mark.parametrize(
    "act",
    [
        lambda: os.chmod("own", 0o741),
        lambda: os.chmod("../box/own", 0o741),
        lambda: os.chmod(os.path.abspath("own"), 0o741),
        lambda: os.chmod("/proc/self/cwd/own", 0o741),
        lambda: os.chmod("own", 0o741, dir_fd=os.open(".", os.O_RDONLY)),
        lambda: os.fchmod(os.open("own", os.O_RDONLY), 0o741),
        lambda: (os.symlink("own", "link"), os.chmod("link", 0o741))[1],
    ],
)
def test_the_mode_of_a_file_in_the_box_is_changed_however_it_is_named(
    box: Path, act: Callable[[], object]
) -> None:
    assert mediated(in_box(box, act), box) == "None"
    assert mode_of(box / "own") == 0o741


@pytest.mark.parametrize(
    "act",
    [
        lambda: os.chmod("../foreign", 0o777),
        lambda: os.chmod("../box-beside", 0o777),
        lambda: os.chmod("..", 0o777),
        lambda: os.chmod(os.path.abspath("../foreign"), 0o777),
        lambda: os.chmod("foreign", 0o777, dir_fd=os.open("..", os.O_RDONLY)),
        lambda: os.fchmod(os.open("../foreign", os.O_RDONLY), 0o777),
        lambda: (os.symlink("../foreign", "link"), os.chmod("link", 0o777)),
        lambda: os.chmod(f"/proc/self/fd/{os.open('../foreign', os.O_PATH)}", 0o777),
        lambda: os.chmod(f"/proc/{os.getppid()}/cwd", 0o777),
        lambda: os.utime("../foreign", (1, 1)),
        lambda: os.utime("/dev/null"),
        lambda: os.chmod("own", 0o4755),
    ],
)
def test_nothing_else_is_changed_however_it_is_named(box: Path, act: Callable[[], object]) -> None:
    assert mediated(in_box(box, act), box) == "EPERM"
    for path in (box / "own", box.parent / "foreign", box.parent / "box-beside"):
        assert mode_of(path) == 0o600
        assert path.stat().st_mtime > 1


def test_times_are_set_as_they_were_given(box: Path) -> None:
    assert mediated(lambda: os.utime(box / "own", ns=(1_500_000_001, 2_500_000_002)), box) == "None"

    found = (box / "own").stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_500_000_001, 2_500_000_002)


def test_times_of_a_link_are_its_own(box: Path) -> None:
    (box / "link").symlink_to("own")

    said = mediated(lambda: os.utime(box / "link", (1, 1), follow_symlinks=False), box)

    assert said == "None"
    assert (box / "link").lstat().st_mtime == 1
    assert (box / "own").stat().st_mtime > 1


def change_by_address(address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(syscalls.table()["fchmodat"])
    if libc.syscall(number, -100, ctypes.c_void_p(address), 0o777) != 0:
        raise OSError(ctypes.get_errno(), "fchmodat")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: os.chmod("missing", 0o777), "ENOENT"),
        (lambda: os.chmod("own/below", 0o777), "ENOTDIR"),
        (lambda: os.chmod("", 0o777), "ENOENT"),
        (lambda: os.chmod("x" * 300, 0o777), "ENAMETOOLONG"),
        (lambda: os.chmod("./" * 3000 + "own", 0o777), "ENAMETOOLONG"),
        (lambda: os.fchmod(999_999, 0o777), "EBADF"),
        (lambda: change_by_address(8), "EFAULT"),
        (lambda: change_by_address((1 << 64) - 8), "EFAULT"),
    ],
)
def test_a_call_that_makes_no_sense_gets_the_answer_it_would_have_got(
    box: Path, act: Callable[[], object], said: str
) -> None:
    assert mediated(in_box(box, act), box) == said


def test_threads_and_children_are_answered_too(box: Path) -> None:
    def change_from_everywhere() -> object:
        thread = threading.Thread(target=os.chmod, args=(box / "own", 0o701))
        thread.start()
        thread.join()
        first = mode_of(box / "own")
        if os.fork() == 0:
            os.chmod(box / "own", 0o702)
            os._exit(0)
        os.wait()
        return oct(first), oct(mode_of(box / "own"))

    assert mediated(change_from_everywhere, box) == "('0o701', '0o702')"


def test_calls_that_are_not_held_back_go_on_as_before(box: Path) -> None:
    assert mediated(lambda: (box / "own").write_text("x"), box) == "1"


@pytest.fixture
def confined(box: Path) -> Path:
    version = landlock.abi_version()
    require("landlock", available=version >= 1, why=f"Landlock has version {version}")
    return box


@pytest.mark.parametrize(
    "path",
    ["/proc/self/fd", "/proc/self/fd/", "/dev/fd", "/proc/thread-self/fd", "/proc/{}/fd"],
)
def test_a_process_is_handed_the_list_of_its_own_descriptors(confined: Path, path: str) -> None:
    def list_them() -> object:
        # Nobody but PID 1 can open it from here on.
        own = path.format(os.getpid())
        landlock.restrict(read_only=[str(confined)], read_write=[])
        return sorted(os.listdir(own)) == sorted(os.listdir("/proc/self/fd"))

    assert mediated(list_them, confined) == "True"


def test_children_and_threads_are_handed_their_own(confined: Path) -> None:
    def list_them() -> object:
        landlock.restrict(read_only=[str(confined)], read_write=[])
        mine = os.open(confined, os.O_RDONLY)
        listed: list[list[str]] = []
        thread = threading.Thread(target=lambda: listed.append(os.listdir("/proc/self/fd")))
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            extra = os.dup(mine)
            os._exit(int(str(extra) not in os.listdir("/proc/self/fd")))
        return str(mine) in listed[0], os.waitpid(child, 0)[1]

    assert mediated(list_them, confined) == "(True, 0)"


@pytest.mark.parametrize(
    "path",
    ["/proc", "/proc/self", "/proc/self/task", "/proc/{}/fd", "/proc/self/fd/..", "/proc/1/fd"],
)
def test_of_processes_nothing_else_is_handed_over(confined: Path, path: str) -> None:
    def list_it() -> object:
        parent = os.getppid()
        landlock.restrict(read_only=[str(confined)], read_write=[])
        return os.listdir(path.format(parent))

    assert mediated(list_it, confined) == "EACCES"


@pytest.mark.parametrize("way", ["..", "../..", "../../{}/fd", "../task", "../../self/environ"])
def test_the_list_of_descriptors_leads_nowhere(confined: Path, way: str) -> None:
    def follow() -> object:
        parent = os.getppid()
        landlock.restrict(read_only=[str(confined)], read_write=[])
        start = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
        return os.open(way.format(parent), os.O_RDONLY, dir_fd=start)

    assert mediated(follow, confined) == "EACCES"


def test_folders_are_opened_as_before(confined: Path) -> None:
    def list_both() -> object:
        landlock.restrict(read_only=[str(confined)], read_write=[])
        return os.listdir(confined), os.listdir(os.open(confined, os.O_RDONLY))

    assert mediated(list_both, confined) == "(['own'], ['own'])"


def test_a_list_that_is_opened_without_room_for_a_descriptor_is_refused(confined: Path) -> None:
    def open_it() -> object:
        landlock.restrict(read_only=[str(confined)], read_write=[])
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        return os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)

    assert mediated(open_it, confined) in {"EMFILE", "EACCES"}
