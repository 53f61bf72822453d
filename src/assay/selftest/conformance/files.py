"""Requirements for reading and writing files that need no program."""

from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

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
from assay.contracts.execution import FileInfo
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.selftest.conformance.promise import promise
from assay.selftest.programs import ORDINARY, refused

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
