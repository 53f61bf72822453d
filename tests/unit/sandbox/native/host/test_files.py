import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.errors import (
    FileTooLargeError,
    NotARegularFileError,
    PathOutsideWorkspaceError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)
from assay.contracts.execution import FileInfo
from assay.sandbox.native.host.files import WorkspaceFiles
from assay.sandbox.native.kernel.rmtree import remove_tree
from tests.support.requirements import require

P = PurePosixPath
SOMEBODY = 1_600_000_000
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A workspace, and something beside it that is none of its business."""

    files: WorkspaceFiles
    workspace: Path
    secret: Path

    def read(self, path: str, *, max_bytes: int = MAX_BYTES) -> bytes:
        return self.files.read(P(path), max_bytes=max_bytes)

    def write(self, path: str, content: bytes = b"new", *, executable: bool = False) -> None:
        self.files.write(P(path), content, executable=executable)

    def names(self, path: str = "") -> list[str]:
        return [str(entry.path) for entry in self.files.list_below(P(path))]


@contextmanager
def a_ground(
    folder: Path, *, act_as: int | None = None, room: int | None = None
) -> Generator[Ground]:
    workspace, outside = folder / "workspace", folder / "outside"
    workspace.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    directory = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    files = WorkspaceFiles(directory, act_as=act_as, room=lambda: room)
    try:
        yield Ground(files=files, workspace=workspace, secret=outside / "secret")
    finally:
        os.close(directory)
        # Some nests here are too deep for pytest to remove.
        remove_tree(str(workspace))


@pytest.fixture
def ground(tmp_path: Path) -> Generator[Ground]:
    with a_ground(tmp_path) as made:
        yield made


OPERATIONS: dict[str, Callable[[WorkspaceFiles, PurePosixPath], object]] = {
    "read": lambda files, path: files.read(path, max_bytes=MAX_BYTES),
    "write": lambda files, path: files.write(path, b"new", executable=False),
    "list": lambda files, path: files.list_below(path),
    "make": lambda files, path: files.make_directory(path),
    "remove": lambda files, path: files.remove(path),
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_what_was_written_is_read_back(ground: Ground) -> None:
    ground.write("a/b/c.bin", b"\x00\xff")

    assert ground.read("a/b/c.bin") == b"\x00\xff"
    assert (ground.workspace / "a" / "b" / "c.bin").read_bytes() == b"\x00\xff"


def test_writing_again_replaces_content_and_mode(ground: Ground) -> None:
    ground.write("x", b"a longer content", executable=True)

    ground.write("x", b"short")

    assert ground.read("x") == b"short"
    assert ground.files.list_below(P()) == (
        FileInfo(path=P("x"), kind="file", size_bytes=5, executable=False),
    )


@pytest.mark.parametrize(("executable", "mode"), [(False, 0o644), (True, 0o755)])
def test_the_mode_of_a_file_is_as_asked_whatever_the_umask(
    ground: Ground, *, executable: bool, mode: int
) -> None:
    before = os.umask(0o077)
    try:
        ground.write("x", executable=executable)
    finally:
        os.umask(before)

    assert stat.S_IMODE((ground.workspace / "x").stat().st_mode) == mode


def test_a_file_that_is_being_read_is_replaced_and_not_changed(ground: Ground) -> None:
    ground.write("x", b"old")
    with (ground.workspace / "x").open("rb") as reader:
        ground.write("x", b"new")

        assert reader.read() == b"old"


def test_a_write_that_fails_leaves_nothing_behind(ground: Ground) -> None:
    (ground.workspace / "folder").mkdir()

    with pytest.raises(NotARegularFileError):
        ground.write("folder")

    assert ground.names() == ["folder"]


@each_operation
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "..", "../outside/secret", "a/../../outside/secret", "a/.."]
)
def test_a_path_that_says_it_leads_out_is_refused(
    ground: Ground, operation: Callable[[WorkspaceFiles, PurePosixPath], object], path: str
) -> None:
    (ground.workspace / "a").mkdir()

    with pytest.raises(PathOutsideWorkspaceError) as caught:
        operation(ground.files, P(path))

    assert "relative to the workspace root" in caught.value.hint
    assert ground.secret.read_text() == "secret"


@each_operation
def test_a_symlink_on_the_way_is_not_passed(
    ground: Ground, operation: Callable[[WorkspaceFiles, PurePosixPath], object]
) -> None:
    (ground.workspace / "link").symlink_to(ground.secret.parent)

    with pytest.raises((PathOutsideWorkspaceError, NotARegularFileError)):
        operation(ground.files, P("link/secret"))

    assert ground.secret.read_text() == "secret"
    assert [path.name for path in ground.secret.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("name", ["read", "write", "list", "make"])
def test_a_symlink_at_the_end_is_not_followed(ground: Ground, name: str) -> None:
    target = ground.secret if name in {"read", "write"} else ground.secret.parent
    (ground.workspace / "link").symlink_to(target)

    with pytest.raises((PathOutsideWorkspaceError, NotARegularFileError)):
        OPERATIONS[name](ground.files, P("link"))

    assert ground.secret.read_text() == "secret"


def test_a_symlink_that_stays_inside_is_not_followed_either(ground: Ground) -> None:
    ground.write("file")
    (ground.workspace / "link").symlink_to("file")

    with pytest.raises(PathOutsideWorkspaceError):
        ground.read("link")


def test_a_link_is_removed_and_not_what_it_points_to(ground: Ground) -> None:
    (ground.workspace / "link").symlink_to(ground.secret.parent)

    ground.files.remove(P("link"))

    assert ground.names() == []
    assert ground.secret.read_text() == "secret"


def test_removing_a_folder_follows_no_link_in_it(ground: Ground) -> None:
    (ground.workspace / "a" / "b").mkdir(parents=True)
    (ground.workspace / "a" / "b" / "link").symlink_to(ground.secret.parent)

    ground.files.remove(P("a"))

    assert ground.names() == []
    assert ground.secret.read_text() == "secret"


def test_writing_over_a_hard_link_leaves_the_other_name_alone(ground: Ground) -> None:
    os.link(ground.secret, ground.workspace / "link")

    ground.write("link", b"new")

    assert ground.read("link") == b"new"
    assert ground.secret.read_text() == "secret"


def test_a_hard_link_gives_no_right_that_the_sandbox_did_not_have(tmp_path: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root reads files as somebody else")
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    with a_ground(tmp_path, act_as=SOMEBODY) as ground:
        ground.secret.chmod(0o600)
        os.link(ground.secret, ground.workspace / "link")

        with pytest.raises(WorkspaceError, match="permission denied"):
            ground.read("link")


def test_files_belong_to_the_sandbox_and_later_ones_to_us_again(tmp_path: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root makes files of somebody else")
    with a_ground(tmp_path, act_as=SOMEBODY) as ground:
        os.chown(ground.workspace, SOMEBODY, SOMEBODY)

        ground.write("folder/file")
        with pytest.raises(WorkspaceFileNotFoundError):
            ground.read("absent")
        (tmp_path / "ours").touch()

        for path in (ground.workspace / "folder", ground.workspace / "folder" / "file"):
            assert (path.stat().st_uid, path.stat().st_gid) == (SOMEBODY, SOMEBODY)
        assert ((tmp_path / "ours").stat().st_uid, (tmp_path / "ours").stat().st_gid) == (0, 0)


@pytest.mark.parametrize("name", ["read", "write"])
def test_a_fifo_is_neither_read_nor_written_and_nobody_waits(ground: Ground, name: str) -> None:
    os.mkfifo(ground.workspace / "pipe")

    with pytest.raises(NotARegularFileError):
        OPERATIONS[name](ground.files, P("pipe"))

    assert stat.S_ISFIFO((ground.workspace / "pipe").stat().st_mode)


@pytest.mark.parametrize("name", ["read", "write"])
def test_a_directory_is_no_file(ground: Ground, name: str) -> None:
    (ground.workspace / "folder").mkdir()

    with pytest.raises(NotARegularFileError):
        OPERATIONS[name](ground.files, P("folder"))


@each_operation
def test_a_file_is_no_directory_to_pass_through(
    ground: Ground, operation: Callable[[WorkspaceFiles, PurePosixPath], object]
) -> None:
    ground.write("file")

    with pytest.raises(NotARegularFileError):
        operation(ground.files, P("file/below"))


@pytest.mark.parametrize("name", ["list", "make"])
def test_a_file_is_no_directory(ground: Ground, name: str) -> None:
    ground.write("file")

    with pytest.raises(NotARegularFileError):
        OPERATIONS[name](ground.files, P("file"))


@pytest.mark.parametrize("name", ["read", "list", "remove"])
def test_what_is_not_there_is_said_to_be_missing(ground: Ground, name: str) -> None:
    with pytest.raises(WorkspaceFileNotFoundError, match="'absent/file'"):
        OPERATIONS[name](ground.files, P("absent/file"))


def test_the_workspace_itself_is_neither_read_written_nor_removed(ground: Ground) -> None:
    for name in ("read", "write"):
        with pytest.raises(NotARegularFileError):
            OPERATIONS[name](ground.files, P())
    with pytest.raises(PathOutsideWorkspaceError):
        ground.files.remove(P())

    assert ground.workspace.is_dir()


@each_operation
@pytest.mark.parametrize("path", ["a\0b", "\ud800"], ids=["NUL", "lone surrogate"])
def test_a_name_that_no_file_can_have_is_refused(
    ground: Ground, operation: Callable[[WorkspaceFiles, PurePosixPath], object], path: str
) -> None:
    with pytest.raises((UsageError, WorkspaceError)):
        operation(ground.files, P(path))


@each_operation
def test_a_name_that_is_too_long_is_refused(
    ground: Ground, operation: Callable[[WorkspaceFiles, PurePosixPath], object]
) -> None:
    with pytest.raises((UsageError, WorkspaceError)):
        operation(ground.files, P("x" * 300))


def test_a_name_that_is_not_utf_8_is_listed_and_read(ground: Ground) -> None:
    name = os.fsdecode(b"caf\xe9")
    (ground.workspace / name).write_bytes(b"content")

    (entry,) = ground.files.list_below(P())

    assert os.fsencode(str(entry.path)) == b"caf\xe9"
    assert ground.files.read(entry.path, max_bytes=MAX_BYTES) == b"content"


def test_a_list_names_every_kind_and_is_sorted(ground: Ground) -> None:
    ground.write("z", b"12")
    ground.write("a/run", b"123", executable=True)
    (ground.workspace / "link").symlink_to("/etc")
    os.mkfifo(ground.workspace / "pipe")

    found = ground.files.list_below(P())

    assert [(str(entry.path), entry.kind) for entry in found] == [
        ("a", "directory"),
        ("a/run", "file"),
        ("link", "symlink"),
        ("pipe", "other"),
        ("z", "file"),
    ]
    sizes = {str(entry.path): (entry.size_bytes, entry.executable) for entry in found}
    assert (sizes["a/run"], sizes["z"]) == ((3, True), (2, False))


def test_a_list_of_a_folder_has_paths_from_the_root(ground: Ground) -> None:
    ground.write("a/b/c")
    ground.write("d")

    assert ground.names("a") == ["a/b", "a/b/c"]


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_a_file_is_read_up_to_the_size_asked_for(ground: Ground, size: int, *, fits: bool) -> None:
    ground.write("x", b"x" * size)

    if fits:
        assert len(ground.read("x", max_bytes=10)) == size
        return
    with pytest.raises(FileTooLargeError) as caught:
        ground.read("x", max_bytes=10)
    assert (caught.value.size_bytes, caught.value.max_bytes) == (size, 10)


def test_a_file_larger_than_it_says_is_not_read_for_ever(ground: Ground) -> None:
    # Files of `/proc` say they are empty; one that grows while it is read looks the same.
    directory = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    files = WorkspaceFiles(directory, act_as=None, room=lambda: None)
    try:
        with pytest.raises(FileTooLargeError):
            files.read(P("maps"), max_bytes=10)
    finally:
        os.close(directory)
    assert ground.names() == []


def nest(top: Path, depth: int) -> None:
    current = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


def test_a_list_goes_as_deep_as_anybody_would(ground: Ground) -> None:
    nest(ground.workspace, 150)

    assert len(ground.names()) == 150


def test_a_nest_too_deep_to_list_is_an_error_and_closes_what_it_opened(ground: Ground) -> None:
    nest(ground.workspace, 210)
    before = open_descriptors()

    with pytest.raises(WorkspaceError, match="nested too deeply"):
        ground.names()

    assert open_descriptors() == before


def test_a_nest_that_no_path_could_name_can_be_removed(ground: Ground) -> None:
    nest(ground.workspace, 1100)

    ground.files.remove(P("d"))

    assert ground.names() == []


def test_a_file_that_fits_into_the_room_is_written(tmp_path: Path) -> None:
    with a_ground(tmp_path, room=10) as ground:
        ground.write("x", b"x" * 10)

        assert ground.names() == ["x"]


@pytest.mark.parametrize("room", [9, 0, -5])
def test_a_file_larger_than_the_room_is_refused_before_anything_is_made(
    tmp_path: Path, room: int
) -> None:
    with a_ground(tmp_path, room=room) as ground:
        with pytest.raises(WorkspaceFullError, match="no space left"):
            ground.write("folder/x", b"x" * 10)

        assert ground.names() == []


@each_operation
@pytest.mark.parametrize("path", ["file", "folder", "link", "absent/file", "folder/new"])
def test_no_operation_leaves_a_descriptor_open(
    ground: Ground, operation: Callable[[WorkspaceFiles, PurePosixPath], object], path: str
) -> None:
    ground.write("file")
    (ground.workspace / "folder").mkdir()
    (ground.workspace / "link").symlink_to("/etc")
    before = open_descriptors()

    try:
        operation(ground.files, P(path))
    except WorkspaceError:
        assert open_descriptors() == before
    assert open_descriptors() == before
