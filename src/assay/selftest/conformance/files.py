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
from assay.selftest.conformance.requirement import promise
from assay.selftest.programs import ORDINARY, describe, refused, run_well

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


@promise
async def a_file_comes_back_as_it_was_written(backend: SandboxBackend) -> None:
    contents = (b"", b"text\n", b"no newline", bytes(range(256)) * 5, b"x" * (3 << 20))
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for content in contents:
            await sandbox.write_file(_FILE, content)

            back = await sandbox.read_file(_FILE)
            assert back == content, f"{len(content)} bytes came back as {len(back)} others"


@promise
async def directories_on_the_way_are_made(backend: SandboxBackend) -> None:
    path = PurePosixPath("a/b/c/file")
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(path, b"deep")

        assert await sandbox.read_file(path) == b"deep"
        assert await _listed(sandbox) == ["a", "a/b", "a/b/c", "a/b/c/file"]


@promise
async def writing_again_replaces_the_file(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"long content", executable=True)
        await sandbox.write_file(_FILE, b"short")

        assert await sandbox.read_file(_FILE) == b"short"
        entry = (await sandbox.list_files())[0]
        assert not entry.executable, "the executable bit of the replaced file is still there"


@promise
async def entries_are_described(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
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


@promise
async def a_listing_is_complete_and_sorted_by_path(backend: SandboxBackend) -> None:
    paths = ["b", "a/z", "a-b", "a/b/c", "B", "a.b"]
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for path in paths:
            await sandbox.write_file(PurePosixPath(path), b"")

        listed = [entry.path for entry in await sandbox.list_files()]

    assert listed == sorted(listed), f"not sorted by path: {listed}"
    assert set(map(str, listed)) == {*paths, "a", "a/b"}, f"not complete: {listed}"


@promise
async def a_listing_of_a_directory_names_paths_from_the_root(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(PurePosixPath("folder/deep/file"), b"")
        await sandbox.write_file(PurePosixPath("elsewhere"), b"")

        assert await _listed(sandbox, _FOLDER) == ["folder/deep", "folder/deep/file"]


@promise
async def an_empty_directory_lists_nothing(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        assert await sandbox.list_files() == ()
        await sandbox.make_directory(_FOLDER)

        assert await sandbox.list_files(_FOLDER) == ()


@promise
async def odd_names_are_names(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
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


@promise
async def making_a_directory_twice_is_fine(backend: SandboxBackend) -> None:
    path = PurePosixPath("folder/inner")
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.make_directory(path)
        await sandbox.write_file(path / "file", b"kept")
        await sandbox.make_directory(path)
        await sandbox.make_directory(_FOLDER)
        await sandbox.make_directory(_ROOT)

        assert await sandbox.read_file(path / "file") == b"kept"


@promise
async def what_is_removed_is_gone(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"")
        await sandbox.write_file(PurePosixPath("folder/deep/file"), b"")
        await sandbox.write_file(PurePosixPath("kept"), b"")

        await sandbox.remove_path(_FILE)
        await sandbox.remove_path(_FOLDER)

        assert await _listed(sandbox) == ["kept"]


@promise
async def the_workspace_itself_cannot_be_removed(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"kept")
        await refused(PathOutsideWorkspaceError, sandbox.remove_path(_ROOT))

        assert await sandbox.read_file(_FILE) == b"kept"


@promise
async def a_file_larger_than_asked_for_is_refused(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"x" * 1001)

        error = await refused(FileTooLargeError, sandbox.read_file(_FILE, max_bytes=1000))
        assert (error.size_bytes, error.max_bytes) == (1001, 1000), vars(error)
        assert len(await sandbox.read_file(_FILE, max_bytes=1001)) == 1001


@promise
async def what_is_missing_is_not_found(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for path in (_MISSING, PurePosixPath("no/such/place")):
            await refused(WorkspaceFileNotFoundError, sandbox.read_file(path))
            await refused(WorkspaceFileNotFoundError, sandbox.list_files(path))
            await refused(WorkspaceFileNotFoundError, sandbox.remove_path(path))


@promise
async def a_directory_is_not_a_file(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FOLDER / "file", b"kept")

        await refused(NotARegularFileError, sandbox.read_file(_FOLDER))
        await refused(NotARegularFileError, sandbox.write_file(_FOLDER, b""))
        await refused(NotARegularFileError, sandbox.read_file(_ROOT))
        await refused(NotARegularFileError, sandbox.write_file(_ROOT, b""))
        assert await sandbox.read_file(_FOLDER / "file") == b"kept"


@promise
async def a_file_is_not_a_directory(backend: SandboxBackend) -> None:
    below = _FILE / "below"
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"kept")

        await refused(NotARegularFileError, sandbox.list_files(_FILE))
        await refused(NotARegularFileError, sandbox.make_directory(_FILE))
        await refused(NotARegularFileError, sandbox.make_directory(below))
        await refused(NotARegularFileError, sandbox.write_file(below, b""))
        await refused(WorkspaceError, sandbox.read_file(below))
        await refused(WorkspaceError, sandbox.list_files(below))
        await refused(WorkspaceError, sandbox.remove_path(below))
        assert await sandbox.read_file(_FILE) == b"kept"


@promise
async def paths_that_lead_out_by_name_are_refused(backend: SandboxBackend) -> None:
    paths = ("/etc/passwd", "/", "/app/file", "..", "../file", "folder/../../file", "a/../../..")
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.make_directory(_FOLDER)
        for path in paths:
            for name, operation in _operations(sandbox, PurePosixPath(path)).items():
                try:
                    await refused(PathOutsideWorkspaceError, operation())
                except (AssertionError, AssayError) as error:
                    raise AssertionError(f"{name} of {path!r}: {error!r}") from error

        assert await _listed(sandbox) == ["folder"]


@promise
async def impossible_names_are_refused_politely(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for path in ("nul\0byte", "a" * 256, "a" * 5000, "/".join(["deep"] * 2000)):
            for name, operation in _operations(sandbox, PurePosixPath(path)).items():
                if path.startswith("deep") and name in {"write_file", "make_directory"}:
                    continue  # possible if directories are opened one by one
                try:
                    await operation()
                except (WorkspaceError, UsageError):
                    continue
                raise AssertionError(f"{name} took a path that cannot be: {path!r:.40}")


@promise
async def a_file_beyond_the_limit_is_refused(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        content = bytes((ORDINARY.disk_mb + 1) << 20)
        await refused(WorkspaceFullError, sandbox.write_file(_FILE, content))


@promise
async def files_of_a_closed_sandbox_are_unavailable(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"")

    for name, operation in _operations(sandbox, _FILE).items():
        error = await refused(SandboxUnavailableError, operation())
        assert error.dispatch == "never_started", f"{name}: dispatch is {error.dispatch!r}"


async def _listed(sandbox: Sandbox, path: PurePosixPath = _ROOT) -> list[str]:
    return [str(entry.path) for entry in await sandbox.list_files(path)]


_LINK = PurePosixPath("link")


@promise
async def a_program_finds_the_files_given(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(PurePosixPath("folder/given"), b"\x00\xff content")

        seen = await run_well(sandbox, "print(open('folder/given', 'rb').read())")
        assert seen == "b'\\x00\\xff content'\n", seen


@promise
async def a_program_may_change_the_files_given(backend: SandboxBackend) -> None:
    change = """
        import os
        open("folder/given", "a").write(" and more")
        open("folder/made", "w").write("new")
        os.rename("folder/other", "moved")
        os.remove("gone")
    """
    async with backend.open_sandbox(ORDINARY) as sandbox:
        for name in ("folder/given", "folder/other", "gone"):
            await sandbox.write_file(PurePosixPath(name), b"given")
        await run_well(sandbox, change)

        assert await sandbox.read_file(PurePosixPath("folder/given")) == b"given and more"
        listed = [str(entry.path) for entry in await sandbox.list_files()]
        assert listed == ["folder", "folder/given", "folder/made", "moved"], listed


@promise
async def a_program_may_change_modes_and_times_of_its_files(backend: SandboxBackend) -> None:
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
    async with backend.open_sandbox(ORDINARY) as sandbox:
        seen = await run_well(sandbox, change)
        assert seen == "0o751 2.0\n" * 2, seen


@promise
async def files_of_a_program_can_be_taken(backend: SandboxBackend) -> None:
    make = """
        import os
        os.makedirs("out/deep")
        open("out/deep/file", "wb").write(bytes(range(256)))
        os.chmod("out/deep/file", 0o700)
    """
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await run_well(sandbox, make)

        content = await sandbox.read_file(PurePosixPath("out/deep/file"))
        assert content == bytes(range(256)), content
        entry = (await sandbox.list_files())[-1]
        assert entry.executable, entry
        assert entry.size_bytes == 256, entry


@promise
async def files_of_a_program_can_be_replaced_and_removed(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await run_well(sandbox, "import os; os.mkdir('d'); open('d/file', 'w').write('mine')")

        await sandbox.write_file(PurePosixPath("d/file"), b"yours")
        assert await run_well(sandbox, "print(open('d/file').read())") == "yours\n"
        await sandbox.remove_path(PurePosixPath("d"))
        assert await sandbox.list_files() == ()


@promise
async def an_executable_file_can_be_run(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(
            PurePosixPath("tools/greet"), b"#!/bin/sh\necho hello $1\n", executable=True
        )

        result = await sandbox.run(Command(argv=("tools/greet", "you")))
        assert result.stdout == "hello you\n", describe(result)


@promise
async def odd_names_of_a_program_come_back_whole(backend: SandboxBackend) -> None:
    make = r"""
        for name in [b"line\nbreak", b"caf\xe9", b"\xff\xfe", "\u2713".encode(), b"-", b"\x01"]:
            open(name, "wb").write(name)
    """
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await run_well(sandbox, make)

        entries = await sandbox.list_files()
        assert len(entries) == 6, entries
        for entry in entries:
            content = await sandbox.read_file(entry.path)
            assert content == str(entry.path).encode("utf-8", "surrogateescape"), entry


@promise
async def links_out_of_the_workspace_are_refused(backend: SandboxBackend) -> None:
    links = """
        import os
        os.symlink("/etc/passwd", "absolute")
        os.symlink("../../../../../../etc/passwd", "relative")
        os.symlink("/etc", "folder")
        os.symlink("..", "up")
        os.symlink("folder", "twice")
    """
    async with backend.open_sandbox(ORDINARY) as sandbox:
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


@promise
async def links_within_the_workspace_lead_nowhere_else(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
        await sandbox.write_file(_FILE, b"inside")
        await run_well(sandbox, "import os; os.symlink('file', 'link'); os.symlink('self', 'self')")

        # Rejecting every link is as safe as following one that stays inside.
        with suppress(WorkspaceError):
            assert await sandbox.read_file(_LINK) == b"inside"
        await refused(WorkspaceError, sandbox.read_file(PurePosixPath("self")))


@promise
async def removing_a_link_keeps_what_it_points_to(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(ORDINARY) as sandbox:
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


@promise
async def a_listing_names_links_and_does_not_follow_them(backend: SandboxBackend) -> None:
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
    async with backend.open_sandbox(ORDINARY) as sandbox:
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


@promise
async def pipes_and_sockets_are_not_files(backend: SandboxBackend) -> None:
    make = """
        import os, socket, stat
        os.mkfifo("pipe")
        try:
            socket.socket(socket.AF_UNIX).bind("socket")
        except OSError:
            os.mknod("socket", stat.S_IFSOCK | 0o600)
    """
    async with backend.open_sandbox(ORDINARY) as sandbox:
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
