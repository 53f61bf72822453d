# ruff: noqa: PTH100, PTH101, PTH211, S103 - the calls themselves, as programs make them, are tested

import ctypes
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.sandbox.native import kernel, mediation, syscalls
from assay.sandbox.native.seccomp import PreparedFilter, build_asking_filter
from tests.support.forked import outcome_of


def mediated(action: Callable[[], object], box: Path) -> str:
    """What an action gives in a process whose changes to files go through its parent."""

    def be_the_first_process() -> object:
        line = mediation.open_line()
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, outcome_of(lambda: act(line)).encode())
            os._exit(0)
        mediation.start(line)
        os.wait()
        return os.read(reader, 4096).decode()

    def act(line: mediation.Line) -> object:
        kernel.forbid_new_privileges()
        asking = PreparedFilter(build_asking_filter(mediation.MEDIATED))
        mediation.hand_over(line, asking, [str(box), "/dev/null"])
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
