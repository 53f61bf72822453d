import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.sandbox.native.kernel import landlock, syscalls
from assay.sandbox.native.kernel.seccomp import compile_policy, load
from assay.sandbox.native.kernel.seccomp_policy import Policy
from tests.support.forked import outcome_of
from tests.support.requirements import require

NOBODY = 65534
FIRST_VERSION_WITH_TCP = 4
FIRST_VERSION_WITH_SCOPES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One directory to read, one to write, and one that is nobody's business."""

    readable: Path
    writable: Path
    secret: Path

    def enter(self, *, network: bool = False) -> None:
        landlock.restrict(
            read_only=[str(self.readable)], read_write=[str(self.writable)], network=network
        )


@pytest.fixture
def ground() -> Generator[Ground]:
    require_landlock()
    # Not pytest's directory: only its owner may enter that, and half of these tests are nobody.
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    made = Ground(readable=root / "readable", writable=root / "writable", secret=root / "secret")
    for directory in (made.readable, made.writable, made.secret):
        directory.mkdir()
        directory.chmod(0o777)
        (directory / "file").write_text("text")
        (directory / "file").chmod(0o666)
    yield made
    shutil.rmtree(root)


@pytest.fixture(params=[None, NOBODY], ids=["as_this_user", "as_nobody"])
def uid(request: pytest.FixtureRequest) -> int | None:
    wanted: int | None = request.param
    require("root", available=wanted is None or os.geteuid() == 0, why="only root changes its uid")
    return wanted


@pytest.fixture
def listener() -> Generator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def require_landlock(version: int = 1) -> None:
    spoken = landlock.abi_version()
    require("landlock", available=spoken >= version, why=f"this kernel speaks version {spoken}")


def inside(ground: Ground, action: Callable[[], object], *, network: bool = False) -> object:
    ground.enter(network=network)
    return action()


def test_a_listed_file_can_be_read(ground: Ground, uid: int | None) -> None:
    outcome = outcome_of(lambda: inside(ground, (ground.readable / "file").read_text), uid=uid)

    assert outcome == "'text'"


def test_a_file_that_is_not_listed_cannot_be_read(ground: Ground, uid: int | None) -> None:
    outcome = outcome_of(lambda: inside(ground, (ground.secret / "file").read_text), uid=uid)

    assert outcome == "EACCES"


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda directory: (directory / "file").write_text("more"),
    "create": lambda directory: (directory / "new").write_text("new"),
    "unlink": lambda directory: (directory / "file").unlink(),
    "mkdir": lambda directory: (directory / "new").mkdir(),
    "symlink": lambda directory: (directory / "new").symlink_to("file"),
    "mkfifo": lambda directory: os.mkfifo(directory / "new"),
    "truncate": lambda directory: os.truncate(directory / "file", 0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_only_a_writable_directory_can_be_changed(
    ground: Ground, uid: int | None, change: Callable[[Path], object]
) -> None:
    refused = outcome_of(lambda: inside(ground, lambda: change(ground.readable)), uid=uid)
    done = outcome_of(lambda: inside(ground, lambda: change(ground.writable)), uid=uid)

    assert refused == "EACCES"
    assert not done.startswith("E"), done


def test_a_symlink_cannot_reach_outside(ground: Ground, uid: int | None) -> None:
    (ground.writable / "link").symlink_to(ground.secret / "file")

    outcome = outcome_of(lambda: inside(ground, (ground.writable / "link").read_text), uid=uid)

    assert outcome == "EACCES"


def test_a_device_cannot_be_made_even_where_files_can(ground: Ground) -> None:
    require("root", available=os.geteuid() == 0, why="only root makes devices")
    device = ground.writable / "null"

    outcome = outcome_of(lambda: inside(ground, lambda: os.mknod(device, 0o020666, 0x0103)))

    assert outcome == "EACCES"


def test_a_single_file_can_be_listed(ground: Ground, uid: int | None) -> None:
    def read_and_write() -> str:
        landlock.restrict(
            read_only=[str(ground.readable / "file")], read_write=[str(ground.writable / "file")]
        )
        (ground.writable / "file").write_text("new")
        return (ground.readable / "file").read_text() + (ground.writable / "file").read_text()

    assert outcome_of(read_and_write, uid=uid) == "'textnew'"


def test_a_second_call_takes_away_what_the_first_left(ground: Ground, uid: int | None) -> None:
    def shrink() -> str:
        ground.enter()
        landlock.restrict(read_only=[str(ground.readable)], read_write=[])
        text = (ground.readable / "file").read_text()
        (ground.writable / "file").read_text()
        return text

    assert outcome_of(shrink, uid=uid) == "EACCES"


def test_a_second_call_gives_nothing_back(ground: Ground, uid: int | None) -> None:
    def widen() -> str:
        landlock.restrict(read_only=["/"], read_write=[])
        landlock.restrict(read_only=["/"], read_write=[str(ground.writable)])
        text = (ground.readable / "file").read_text()
        (ground.writable / "file").write_text(text)
        return text

    assert outcome_of(widen, uid=uid) == "EACCES"


def test_tcp_cannot_reach_a_listener_on_this_host(
    ground: Ground, listener: socket.socket, uid: int | None
) -> None:
    require_landlock(FIRST_VERSION_WITH_TCP)
    address = listener.getsockname()

    outcome = outcome_of(lambda: inside(ground, lambda: socket.socket().connect(address)), uid=uid)

    assert outcome == "EACCES"


def test_tcp_cannot_listen(ground: Ground, uid: int | None) -> None:
    require_landlock(FIRST_VERSION_WITH_TCP)

    outcome = outcome_of(
        lambda: inside(ground, lambda: socket.socket().bind(("127.0.0.1", 0))), uid=uid
    )

    assert outcome == "EACCES"


def test_tcp_works_once_a_network_is_granted(
    ground: Ground, listener: socket.socket, uid: int | None
) -> None:
    address = listener.getsockname()

    outcome = outcome_of(
        lambda: inside(ground, lambda: socket.socket().connect(address), network=True), uid=uid
    )

    assert outcome == "None"


def test_a_signal_cannot_reach_a_process_outside(ground: Ground) -> None:
    require_landlock(FIRST_VERSION_WITH_SCOPES)
    outside = os.getpid()

    outcome = outcome_of(lambda: inside(ground, lambda: os.kill(outside, signal.SIGCONT)))

    assert outcome == "EPERM"


def test_an_abstract_socket_outside_cannot_be_reached(ground: Ground) -> None:
    require_landlock(FIRST_VERSION_WITH_SCOPES)
    name = f"\0assay-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(name)
        outside.listen()

        outcome = outcome_of(
            lambda: inside(ground, lambda: socket.socket(socket.AF_UNIX).connect(name))
        )

    assert outcome == "EPERM"


def test_a_path_that_does_not_exist_is_named_and_restricts_nothing(ground: Ground) -> None:
    missing = str(ground.readable / "missing")

    def ask_for_too_much() -> tuple[str | None, str]:
        try:
            landlock.restrict(read_only=[missing], read_write=[])
        except FileNotFoundError as error:
            return error.filename, (ground.secret / "file").read_text()
        return None, ""

    assert outcome_of(ask_for_too_much) == repr((missing, "text"))


def test_a_symlink_is_no_path_for_a_rule(ground: Ground) -> None:
    link = ground.readable / "link"
    link.symlink_to(ground.secret)

    outcome = outcome_of(lambda: landlock.restrict(read_only=[str(link)], read_write=[]))

    assert outcome == "ELOOP"


def test_no_descriptor_is_left_open(ground: Ground) -> None:
    def lowest_free_descriptor_is_the_same() -> bool:
        before = os.dup(0)
        os.close(before)
        ground.enter()
        return os.dup(0) == before

    assert outcome_of(lowest_free_descriptor_is_the_same) == "True"


ENTRANCE = "landlock_create_ruleset"


@pytest.mark.parametrize("hidden", [frozenset({ENTRANCE}), frozenset[str]()], ids=["old", "denied"])
def test_a_kernel_that_does_not_answer_has_no_landlock(hidden: frozenset[str]) -> None:
    everything_else = frozenset(syscalls.table()) - {ENTRANCE}
    program = compile_policy(Policy(allowed=everything_else, hidden=hidden, rules={}))

    def ask() -> int:
        load(program)
        return landlock.abi_version()

    def rely_on_it() -> None:
        load(program)
        landlock.restrict(read_only=["/"], read_write=[])

    assert outcome_of(ask) == "0"
    assert outcome_of(rely_on_it) == "ENOSYS"
