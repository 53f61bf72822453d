"""Requirements for files: operations that need no program, and files shared with a program."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

import anyio

from assay.contracts.errors import (
    AssayError,
    FileTooLargeError,
    NotARegularFileError,
    PathOutsideWorkspaceError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)
from assay.contracts.execution import Command, FileInfo
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.checks import requirement
from assay.selftest.programs import ORDINARY, refused, run_expecting, run_well

_ROOT = PurePosixPath()
_FILE = PurePosixPath("file")
_FOLDER = PurePosixPath("folder")
_MISSING = PurePosixPath("missing")

_ODD_NAMES = (
    "with space", "line\nbreak", "tab\t", "-rf", "~", "*", "café ✓", "caf\udce9", ".hidden", "...",
    "back\\slash", "'quote\"", "a" * 255, "\x1b[31mred",
)  # fmt: skip


def _operations(
    sandbox: Sandbox, path: PurePosixPath
) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "write_file": lambda: sandbox.write_file(path, b"content"),
        "read_file": lambda: sandbox.read_file(path),
        "list_files": lambda: sandbox.list_files(path),
        "make_directory": lambda: sandbox.make_directory(path),
        "remove_path": lambda: sandbox.remove_path(path),
    }


@requirement
async def a_file_is_read_back_unchanged(sandbox: Sandbox) -> None:
    contents = (b"", b"text\n", b"no newline", bytes(range(256)) * 5, b"x" * (3 << 20))
    for content in contents:
        await sandbox.write_file(_FILE, content)

        back = await sandbox.read_file(_FILE)
        assert back == content, f"{len(content)} bytes came back as {len(back)} others"


@requirement
async def parent_directories_are_created(sandbox: Sandbox) -> None:
    path = PurePosixPath("a/b/c/file")
    await sandbox.write_file(path, b"deep")

    assert await sandbox.read_file(path) == b"deep"
    assert await _listed(sandbox) == ["a", "a/b", "a/b/c", "a/b/c/file"]


@requirement
async def writing_again_replaces_the_file(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FILE, b"long content", executable=True)
    await sandbox.write_file(_FILE, b"short")

    assert await sandbox.read_file(_FILE) == b"short"
    entry = (await sandbox.list_files())[0]
    assert not entry.executable, "the executable bit of the replaced file is still there"


@requirement
async def entries_are_described(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FILE, b"12345")
    await sandbox.write_file(PurePosixPath("tool"), b"", executable=True)
    await sandbox.make_directory(_FOLDER)

    entries = {str(entry.path): entry for entry in await sandbox.list_files()}

    assert entries["file"] == FileInfo(path=_FILE, kind="file", size_bytes=5, executable=False), (
        entries["file"]
    )
    assert entries["tool"].executable, entries["tool"]
    assert entries["tool"].size_bytes == 0, entries["tool"]
    assert entries["folder"].kind == "directory", entries["folder"]


@requirement
async def a_listing_is_complete_and_sorted_by_path(sandbox: Sandbox) -> None:
    paths = ["b", "a/z", "a-b", "a/b/c", "B", "a.b"]
    for path in paths:
        await sandbox.write_file(PurePosixPath(path), b"")

    listed = [entry.path for entry in await sandbox.list_files()]

    assert listed == sorted(listed), f"not sorted by path: {listed}"
    assert set(map(str, listed)) == {*paths, "a", "a/b"}, f"not complete: {listed}"


@requirement
async def a_listing_of_a_directory_names_paths_from_the_root(sandbox: Sandbox) -> None:
    await sandbox.write_file(PurePosixPath("folder/deep/file"), b"")
    await sandbox.write_file(PurePosixPath("elsewhere"), b"")

    assert await _listed(sandbox, _FOLDER) == ["folder/deep", "folder/deep/file"]


@requirement
async def an_empty_directory_lists_nothing(sandbox: Sandbox) -> None:
    assert await sandbox.list_files() == ()
    await sandbox.make_directory(_FOLDER)

    assert await sandbox.list_files(_FOLDER) == ()


@requirement
async def unusual_file_names_are_kept(sandbox: Sandbox) -> None:
    for name in _ODD_NAMES:
        await sandbox.write_file(PurePosixPath(name), name.encode("utf-8", "surrogateescape"))
    for name in _ODD_NAMES:
        content = await sandbox.read_file(PurePosixPath(name))
        assert content == name.encode("utf-8", "surrogateescape"), f"{name!r} holds {content!r}"

    listed = {str(entry.path) for entry in await sandbox.list_files()}
    assert listed == set(_ODD_NAMES), f"changed: {listed ^ set(_ODD_NAMES)}"
    for name in _ODD_NAMES:
        await sandbox.remove_path(PurePosixPath(name))
    assert await sandbox.list_files() == ()


@requirement
async def creating_a_directory_twice_succeeds(sandbox: Sandbox) -> None:
    path = PurePosixPath("folder/inner")
    await sandbox.make_directory(path)
    await sandbox.write_file(path / "file", b"kept")
    await sandbox.make_directory(path)
    await sandbox.make_directory(_FOLDER)
    await sandbox.make_directory(_ROOT)

    assert await sandbox.read_file(path / "file") == b"kept"


@requirement
async def a_removed_file_no_longer_exists(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FILE, b"")
    await sandbox.write_file(PurePosixPath("folder/deep/file"), b"")
    await sandbox.write_file(PurePosixPath("kept"), b"")

    await sandbox.remove_path(_FILE)
    await sandbox.remove_path(_FOLDER)

    assert await _listed(sandbox) == ["kept"]


@requirement
async def the_workspace_itself_cannot_be_removed(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FILE, b"kept")
    await refused(PathOutsideWorkspaceError, sandbox.remove_path(_ROOT))

    assert await sandbox.read_file(_FILE) == b"kept"


@requirement
async def a_file_larger_than_asked_for_is_refused(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FILE, b"x" * 1001)

    error = await refused(FileTooLargeError, sandbox.read_file(_FILE, max_bytes=1000))
    assert (error.size_bytes, error.max_bytes) == (1001, 1000), vars(error)
    assert len(await sandbox.read_file(_FILE, max_bytes=1001)) == 1001


@requirement
async def a_missing_path_is_not_found(sandbox: Sandbox) -> None:
    for path in (_MISSING, PurePosixPath("no/such/place")):
        await refused(WorkspaceFileNotFoundError, sandbox.read_file(path))
        await refused(WorkspaceFileNotFoundError, sandbox.list_files(path))
        await refused(WorkspaceFileNotFoundError, sandbox.remove_path(path))


@requirement
async def a_directory_is_not_a_file(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FOLDER / "file", b"kept")

    await refused(NotARegularFileError, sandbox.read_file(_FOLDER))
    await refused(NotARegularFileError, sandbox.write_file(_FOLDER, b""))
    await refused(NotARegularFileError, sandbox.read_file(_ROOT))
    await refused(NotARegularFileError, sandbox.write_file(_ROOT, b""))
    assert await sandbox.read_file(_FOLDER / "file") == b"kept"


@requirement
async def a_file_is_not_a_directory(sandbox: Sandbox) -> None:
    below = _FILE / "below"
    await sandbox.write_file(_FILE, b"kept")

    await refused(NotARegularFileError, sandbox.list_files(_FILE))
    await refused(NotARegularFileError, sandbox.make_directory(_FILE))
    await refused(NotARegularFileError, sandbox.make_directory(below))
    await refused(NotARegularFileError, sandbox.write_file(below, b""))
    await refused(WorkspaceError, sandbox.read_file(below))
    await refused(WorkspaceError, sandbox.list_files(below))
    await refused(WorkspaceError, sandbox.remove_path(below))
    assert await sandbox.read_file(_FILE) == b"kept"


@requirement
async def paths_with_dot_dot_are_refused(sandbox: Sandbox) -> None:
    paths = ("/etc/passwd", "/", "/app/file", "..", "../file", "folder/../../file", "a/../../..")
    await sandbox.make_directory(_FOLDER)
    for path in paths:
        for name, operation in _operations(sandbox, PurePosixPath(path)).items():
            try:
                await refused(PathOutsideWorkspaceError, operation())
            except (AssertionError, AssayError) as error:
                raise AssertionError(f"{name} of {path!r}: {error!r}") from error

    assert await _listed(sandbox) == ["folder"]


@requirement
async def invalid_names_are_refused_with_an_error(sandbox: Sandbox) -> None:
    for path in ("nul\0byte", "a" * 256, "a" * 5000, "/".join(["deep"] * 2000)):
        for name, operation in _operations(sandbox, PurePosixPath(path)).items():
            if path.startswith("deep") and name in {"write_file", "make_directory"}:
                continue  # possible if directories are opened one by one
            try:
                await operation()
            except (WorkspaceError, UsageError):
                continue
            raise AssertionError(f"{name} took a path that cannot be: {path!r:.40}")


@requirement
async def a_file_beyond_the_limit_is_refused(sandbox: Sandbox) -> None:
    content = bytes((ORDINARY.disk_mb + 1) << 20)
    await refused(WorkspaceFullError, sandbox.write_file(_FILE, content))


@requirement
async def files_of_a_closed_sandbox_are_unavailable(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"")

    for name, operation in _operations(sandbox, _FILE).items():
        error = await refused(SandboxUnavailableError, operation())
        assert error.dispatch == "never_started", f"{name}: dispatch is {error.dispatch!r}"


async def _listed(sandbox: Sandbox, path: PurePosixPath = _ROOT) -> list[str]:
    return [str(entry.path) for entry in await sandbox.list_files(path)]


_LINK = PurePosixPath("link")


@requirement
async def a_program_reads_the_files_of_its_workspace(sandbox: Sandbox) -> None:
    await sandbox.write_file(PurePosixPath("folder/given"), b"\x00\xff content")

    seen = await run_well(sandbox, "print(open('folder/given', 'rb').read())")
    assert seen == "b'\\x00\\xff content'\n", seen


@requirement
async def a_program_may_change_the_files_of_its_workspace(sandbox: Sandbox) -> None:
    change = """
        import os
        open("folder/given", "a").write(" and more")
        open("folder/made", "w").write("new")
        os.rename("folder/other", "moved")
        os.remove("gone")
    """
    for name in ("folder/given", "folder/other", "gone"):
        await sandbox.write_file(PurePosixPath(name), b"given")
    await run_well(sandbox, change)

    assert await sandbox.read_file(PurePosixPath("folder/given")) == b"given and more"
    listed = [str(entry.path) for entry in await sandbox.list_files()]
    assert listed == ["folder", "folder/given", "folder/made", "moved"], listed


@requirement
async def a_program_may_change_modes_and_times_of_its_files(sandbox: Sandbox) -> None:
    change = """
        import os, shutil, tempfile
        for folder in (".", tempfile.gettempdir()):
            path = os.path.join(folder, "file")
            open(path, "w").close()
            os.chmod(path, 0o751)
            os.utime(path, (1, 2))
            shutil.copy2(path, "copy")
            found = os.stat("copy")
            print(oct(found.st_mode & 0o777), found.st_mtime)
    """
    seen = await run_well(sandbox, change)
    assert seen == "0o751 2.0\n" * 2, seen


@requirement
async def files_of_a_program_can_be_read(sandbox: Sandbox) -> None:
    make = """
        import os
        os.makedirs("out/deep")
        open("out/deep/file", "wb").write(bytes(range(256)))
        os.chmod("out/deep/file", 0o700)
    """
    await run_well(sandbox, make)

    content = await sandbox.read_file(PurePosixPath("out/deep/file"))
    assert content == bytes(range(256)), content
    entry = (await sandbox.list_files())[-1]
    assert entry.executable, entry
    assert entry.size_bytes == 256, entry


@requirement
async def files_of_a_program_can_be_replaced_and_removed(sandbox: Sandbox) -> None:
    await run_well(sandbox, "import os; os.mkdir('d'); open('d/file', 'w').write('mine')")

    await sandbox.write_file(PurePosixPath("d/file"), b"yours")
    assert await run_well(sandbox, "print(open('d/file').read())") == "yours\n"
    await sandbox.remove_path(PurePosixPath("d"))
    assert await sandbox.list_files() == ()


@requirement
async def an_executable_file_can_be_run(sandbox: Sandbox) -> None:
    await sandbox.write_file(
        PurePosixPath("tools/greet"), b"#!/bin/sh\necho hello $1\n", executable=True
    )

    await run_expecting(sandbox, Command(argv=("tools/greet", "you")), stdout="hello you\n")


@requirement
async def unusual_names_created_by_a_program_are_kept(sandbox: Sandbox) -> None:
    make = r"""
        for name in [b"line\nbreak", b"caf\xe9", b"\xff\xfe", "\u2713".encode(), b"-", b"\x01"]:
            open(name, "wb").write(name)
    """
    await run_well(sandbox, make)

    entries = await sandbox.list_files()
    assert len(entries) == 6, entries
    for entry in entries:
        content = await sandbox.read_file(entry.path)
        assert content == str(entry.path).encode("utf-8", "surrogateescape"), entry


@requirement
async def links_out_of_the_workspace_are_refused(sandbox: Sandbox) -> None:
    links = """
        import os
        os.symlink("/etc/passwd", "absolute")
        os.symlink("../../../../../../etc/passwd", "relative")
        os.symlink("/etc", "folder")
        os.symlink("..", "up")
        os.symlink("folder", "twice")
    """
    await run_well(sandbox, links)

    for name in ("absolute", "relative", "folder/passwd", "up/file", "twice/passwd"):
        path = PurePosixPath(name)
        await refused(PathOutsideWorkspaceError, sandbox.read_file(path))
        await refused(PathOutsideWorkspaceError, sandbox.write_file(path, b"broken"))
    for name in ("folder", "up", "twice", "folder/sub"):
        await refused(PathOutsideWorkspaceError, sandbox.list_files(PurePosixPath(name)))
    for name in ("folder/sub", "up/sub", "twice/sub"):
        await refused(PathOutsideWorkspaceError, sandbox.make_directory(PurePosixPath(name)))
        await refused(PathOutsideWorkspaceError, sandbox.remove_path(PurePosixPath(name)))


@requirement
async def links_within_the_workspace_stay_inside_it(sandbox: Sandbox) -> None:
    await sandbox.write_file(_FILE, b"inside")
    await run_well(sandbox, "import os; os.symlink('file', 'link'); os.symlink('self', 'self')")

    # Rejecting every link is as safe as following one that stays inside.
    with suppress(WorkspaceError):
        assert await sandbox.read_file(_LINK) == b"inside"
    await refused(WorkspaceError, sandbox.read_file(PurePosixPath("self")))


@requirement
async def removing_a_link_keeps_what_it_points_to(sandbox: Sandbox) -> None:
    await sandbox.write_file(PurePosixPath("folder/file"), b"kept")
    await sandbox.make_directory(PurePosixPath("tree"))
    await run_well(
        sandbox,
        "import os; os.symlink('folder', 'link'); os.symlink('../folder', 'tree/link');"
        "os.symlink('nowhere', 'dangling')",
    )

    for name in ("link", "tree", "dangling"):
        await sandbox.remove_path(PurePosixPath(name))
    assert await sandbox.read_file(PurePosixPath("folder/file")) == b"kept"
    listed = [str(entry.path) for entry in await sandbox.list_files()]
    assert listed == ["folder", "folder/file"], listed


@requirement
async def a_listing_names_links_and_does_not_follow_them(sandbox: Sandbox) -> None:
    make = """
        import os
        os.mkdir("folder")
        open("folder/file", "w").close()
        os.symlink("folder", "link")
        os.symlink("/usr", "out")
        os.symlink("nowhere", "dangling")
        os.symlink(".", "folder/round")
        os.mkfifo("pipe")
    """
    await run_well(sandbox, make)

    kinds = {str(entry.path): entry.kind for entry in await sandbox.list_files()}
    assert kinds == {
        "folder": "directory",
        "folder/file": "file",
        "folder/round": "symlink",
        "link": "symlink",
        "out": "symlink",
        "dangling": "symlink",
        "pipe": "other",
    }, kinds


@requirement
async def pipes_and_sockets_are_not_files(sandbox: Sandbox) -> None:
    make = """
        import os, socket, stat
        os.mkfifo("pipe")
        try:
            socket.socket(socket.AF_UNIX).bind("socket")
        except OSError:
            os.mknod("socket", stat.S_IFSOCK | 0o600)
    """
    await run_well(sandbox, make)

    await _refused_soon(sandbox, ["pipe", "socket"])


async def _refused_soon(sandbox: Sandbox, names: Sequence[str]) -> None:
    for name in names:
        path = PurePosixPath(name)
        with anyio.fail_after(10):
            await refused(NotARegularFileError, sandbox.read_file(path))
            await refused(NotARegularFileError, sandbox.write_file(path, b""))
            await refused(NotARegularFileError, sandbox.list_files(path))
            await sandbox.remove_path(path)
