"""Requirements for files that a program and its user both access."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath

import anyio

from assay.contracts.errors import (
    NotARegularFileError,
    PathOutsideWorkspaceError,
    WorkspaceError,
)
from assay.contracts.execution import Command
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.conformance.promise import promise
from assay.selftest.programs import ORDINARY, describe, refused, run_well

_FILE = PurePosixPath("file")
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
