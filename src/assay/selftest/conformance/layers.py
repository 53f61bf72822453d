"""Requirements for layers: a workspace that starts with files, and what programs changed in it."""

import hashlib
import os
import stat
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import anyio

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import OutputChunk, SandboxSpec, WorkspaceChanges
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.contracts.workspace import WorkspaceLayer
from assay.selftest.checks import requirement
from assay.selftest.programs import ORDINARY, python, refused, run_well

_ODD_NAMES = ("line\nbreak", "caf\udce9", "with space", "-rf", "café ✓")
_FILE = PurePosixPath("file")


@contextmanager
def _new_layer(fill: Callable[[Path], None]) -> Generator[WorkspaceLayer]:
    """Create a layer for one check; fail the check if anything changed it."""
    with TemporaryDirectory(prefix="assay-layer-") as name:
        folder = Path(name).resolve() / "layer"
        folder.mkdir(mode=0o755)
        fill(folder)
        before = _snapshot(folder)
        yield WorkspaceLayer(hashlib.sha256(repr(before).encode()).hexdigest(), folder)
        assert _snapshot(folder) == before, "the folder of the layer has changed"


def _snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return everything of a folder that a change would alter."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        details = path.lstat()
        kind = stat.S_IFMT(details.st_mode)
        content = path.read_bytes() if kind == stat.S_IFREG else b""
        target = path.readlink() if kind == stat.S_IFLNK else ""
        facts = (details.st_mode, details.st_mtime_ns, details.st_nlink, details.st_uid)
        found[str(path.relative_to(folder))] = (*facts, content, target)
    return found


def _project(folder: Path) -> None:
    (folder / "file").write_bytes(b"given\r\n")
    (folder / "same-size").write_bytes(b"12345")
    (folder / "tool").write_bytes(b"#!/bin/sh\necho ran\n")
    (folder / "tool").chmod(0o755)
    (folder / "empty").mkdir()
    for name in ("deep/inner/one", "deep/two", "other/three", "other/four"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    (folder / "link").symlink_to("deep/two")
    (folder / "dangling").symlink_to("nowhere")


def _opened(backend: SandboxBackend, layer: WorkspaceLayer) -> AbstractAsyncContextManager[Sandbox]:
    return backend.open_sandbox(ORDINARY, SandboxSpec(layer=layer))


async def _changes(sandbox: Sandbox) -> tuple[list[str], list[str]]:
    """Return the changes as text: `kind path` with `*` for executable files, and removed paths."""
    changes = await sandbox.changes()
    assert list(changes.written) == sorted(changes.written, key=lambda entry: entry.path)
    assert list(changes.removed) == sorted(changes.removed)
    written = [
        f"{entry.kind} {entry.path}{'*' if entry.executable else ''}" for entry in changes.written
    ]
    return written, [str(path) for path in changes.removed]


async def _expect_changes(sandbox: Sandbox, written: list[str], removed: list[str]) -> None:
    found = await _changes(sandbox)
    assert found == (written, removed), f"{found} instead of {(written, removed)}"


@requirement
async def a_workspace_starts_with_the_files_of_its_layer(backend: SandboxBackend) -> None:
    look = """
        import os, subprocess
        print(open("file", newline="").read() == "given\\r\\n", os.listdir("empty"))
        print(os.readlink("link"), open("link").read(), os.readlink("dangling"))
        print(subprocess.run(["./tool"], capture_output=True, text=True).stdout.strip())
        print(os.access("file", os.X_OK), sorted(os.listdir()))
    """
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox:
            await _expect_changes(sandbox, [], [])
            seen = await run_well(sandbox, look)
            assert await sandbox.read_file(PurePosixPath("deep/inner/one")) == b"deep/inner/one"
            listed = {str(entry.path): entry for entry in await sandbox.list_files()}
            await _expect_changes(sandbox, [], [])

    names = ["dangling", "deep", "empty", "file", "link", "other", "same-size", "tool"]
    assert seen == f"True []\ndeep/two deep/two nowhere\nran\nFalse {names}\n", seen
    assert listed["tool"].executable, listed["tool"]
    assert listed["file"].size_bytes == len(b"given\r\n"), listed["file"]
    assert listed["link"].kind == "symlink", listed["link"]
    below = {"deep/inner", "deep/inner/one", "deep/two", "other/three", "other/four"}
    assert set(listed) == {*names, *below}, sorted(listed)


@requirement
async def changes_list_what_programs_did(backend: SandboxBackend) -> None:
    work = """
        import os, shutil
        open("file", "a").write("more")
        open("same-size", "w").write("54321")
        os.chmod("tool", 0o644)
        open("deep/new", "w").write("new")
        os.makedirs("made/empty")
        os.remove("deep/two")
        shutil.move("other", "moved")
        os.symlink("file", "fresh-link")
    """
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox:
            await run_well(sandbox, work)
            await _expect_changes(
                sandbox,
                [
                    "file deep/new",
                    "file file",
                    "symlink fresh-link",
                    "directory made",
                    "directory made/empty",
                    "directory moved",
                    "file moved/four",
                    "file moved/three",
                    "file same-size",
                    "file tool",
                ],
                ["deep/two", "other"],
            )
            assert await sandbox.read_file(PurePosixPath("moved/four")) == b"other/four"


@requirement
async def changes_list_what_the_caller_did(backend: SandboxBackend) -> None:
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox:
            await sandbox.write_file(_FILE, b"given\r\n", executable=True)
            await sandbox.write_file(PurePosixPath("same-size"), b"12345")
            await sandbox.write_file(PurePosixPath("deep/inner/made"), b"made")
            await sandbox.remove_path(PurePosixPath("other"))
            await sandbox.remove_path(PurePosixPath("link"))
            await sandbox.make_directory(PurePosixPath("folder"))

            written = ["file deep/inner/made", "file file*", "directory folder"]
            await _expect_changes(sandbox, written, ["link", "other"])
            seen = await run_well(sandbox, "import os; print(sorted(os.listdir()))")
            left = ["dangling", "deep", "empty", "file", "folder", "same-size", "tool"]
            assert seen == f"{left}\n", seen


@requirement
async def what_is_put_back_is_no_change(backend: SandboxBackend) -> None:
    work = """
        import os, shutil
        open("file", "wb").write(b"given\\r\\n")
        os.chmod("file", 0o644)
        os.utime("same-size", (1, 2))
        shutil.rmtree("deep")
        os.makedirs("deep/inner")
        open("deep/two", "w").write("deep/two")
        open("deep/inner/one", "w").write("deep/inner/one")
        os.remove("link")
        os.symlink("deep/two", "link")
        os.mkdir("gone")
        open("gone/file", "w").close()
        shutil.rmtree("gone")
        shutil.move("other", "moved")
        shutil.move("moved", "other")
    """
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox:
            await run_well(sandbox, work)
            await _expect_changes(sandbox, [], [])


@requirement
async def changes_list_a_kind_that_replaced_another(backend: SandboxBackend) -> None:
    work = """
        import os, shutil
        os.remove("file")
        os.symlink("/etc/passwd", "file")
        shutil.rmtree("deep")
        open("deep", "w").write("was a folder")
        os.remove("same-size")
        os.mkdir("same-size")
        open("same-size/inside", "w").close()
        shutil.rmtree("other")
        os.symlink("/etc", "other")
        os.remove("link")
        open("link", "w").write("was a link")
        os.mkfifo("pipe")
    """
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox:
            await run_well(sandbox, work)
            await _expect_changes(
                sandbox,
                [
                    "file deep",
                    "symlink file",
                    "file link",
                    "symlink other",
                    "other pipe",
                    "directory same-size",
                    "file same-size/inside",
                ],
                [],
            )


@requirement
async def a_replaced_directory_hides_the_files_of_the_layer(backend: SandboxBackend) -> None:
    work = """
        import os, shutil
        shutil.rmtree("deep")
        os.mkdir("deep")
        open("deep/only", "w").close()
    """
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox:
            await run_well(sandbox, work)
            await _expect_changes(sandbox, ["file deep/only"], ["deep/inner", "deep/two"])
            listed = [str(entry.path) for entry in await sandbox.list_files(PurePosixPath("deep"))]
            assert listed == ["deep/only"], listed


@requirement
async def odd_names_of_a_layer_survive(backend: SandboxBackend) -> None:
    def fill(folder: Path) -> None:
        for name in _ODD_NAMES:
            (folder / name).write_bytes(os.fsencode(name))
            (folder / f"d-{name}").mkdir()
            (folder / f"d-{name}" / name).write_bytes(b"inside")

    work = """
        import os
        for name in sorted(os.listdir(b".")):
            if os.path.isfile(name):
                assert open(name, "rb").read() == name, name
                os.remove(name)
            else:
                open(name + b"/added", "w").close()
    """
    with _new_layer(fill) as layer:
        async with _opened(backend, layer) as sandbox:
            await run_well(sandbox, work)
            changes = await sandbox.changes()

    added = {PurePosixPath(f"d-{name}/added") for name in _ODD_NAMES}
    assert {entry.path for entry in changes.written} == added, changes.written
    assert set(changes.removed) == set(map(PurePosixPath, _ODD_NAMES)), changes.removed


@requirement
async def sandboxes_of_one_layer_do_not_see_each_other(backend: SandboxBackend) -> None:
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as one, _opened(backend, layer) as two:
            await run_well(one, "open('file', 'w').write('of one'); open('new', 'w').close()")
            await two.remove_path(_FILE)

            assert await one.read_file(_FILE) == b"of one"
            await _expect_changes(one, ["file file", "file new"], [])
            await _expect_changes(two, [], ["file"])
        async with _opened(backend, layer) as three:
            assert await three.read_file(_FILE) == b"given\r\n"
            await _expect_changes(three, [], [])


@requirement
async def changes_without_a_layer_are_all_files(sandbox: Sandbox) -> None:
    await _expect_changes(sandbox, [], [])
    await sandbox.write_file(PurePosixPath("folder/file"), b"", executable=True)
    await run_well(sandbox, "import os; os.symlink('folder', 'link')")

    await _expect_changes(sandbox, ["directory folder", "file folder/file*", "symlink link"], [])


@requirement
async def changes_are_readable_while_a_program_runs(backend: SandboxBackend) -> None:
    work = """
        import os, shutil, time
        open("marker", "w").close()
        print("ready", flush=True)
        end = time.monotonic() + 20
        while time.monotonic() < end and not os.path.exists("stop"):
            for folder in ("churn", "deep"):
                os.makedirs(f"{folder}/sub/sub", exist_ok=True)
                open(f"{folder}/sub/file", "w").write("x" * 5000)
                shutil.rmtree(folder)
        print("stopped")
    """
    ready = anyio.Event()
    printed = bytearray()
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox, anyio.create_task_group() as tasks:

            def listen(chunk: OutputChunk) -> None:
                printed.extend(chunk.data)
                if b"ready" in printed:
                    ready.set()

            async def run() -> None:
                await sandbox.run(python(work), on_output=listen)

            tasks.start_soon(run)
            with anyio.fail_after(15):
                await ready.wait()
            for _ in range(20):
                changes = await sandbox.changes()
                assert "marker" in _names(changes), changes
            await sandbox.write_file(PurePosixPath("stop"), b"")
    assert b"stopped" in printed, printed


def _names(changes: WorkspaceChanges) -> set[str]:
    return {str(entry.path) for entry in changes.written}


@requirement
async def changes_of_a_closed_sandbox_are_unavailable(backend: SandboxBackend) -> None:
    with _new_layer(_project) as layer:
        async with _opened(backend, layer) as sandbox:
            pass
        await refused(SandboxUnavailableError, sandbox.changes())
