"""Attacks on the host's file operations by timing: the workspace changes during a read."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import PurePosixPath

import anyio

from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import OutputChunk
from assay.contracts.ports import Sandbox
from assay.selftest.programs import python
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attacks,
)

_CONFIG = AttackConfig(group="host_files")
_RACE_S = 1.0
_RACING = replace(TIGHT, wall_s=15.0, cpu_s=15.0)
_PLACE = PurePosixPath("place")
_FILE = PurePosixPath("file")

_FLIP_DIRECTORY = """
    def prepare():
        os.mkdir("spare")
        open("spare/secret", "w").write("harmless")
        open("spare/writable", "w").write("harmless")
        os.symlink(CANARY["directory"], "link")
    def flip():
        os.rename("spare", "place")
        os.rename("place", "spare")
        os.rename("link", "place")
        os.rename("place", "link")
"""
"""Switches `place` between a directory and a link to the host."""

_FLIP_FILE = """
    def prepare():
        open("spare", "w").write("harmless")
        os.symlink(CANARY["secret_file"], "link")
        os.symlink(CANARY["writable_file"], "other")
    def flip():
        os.link("spare", "new")
        os.rename("new", "file")
        for link in ("link", "other"):
            os.symlink(os.readlink(link), "new")
            os.rename("new", "file")
"""
"""Switches `file` between a file and a link to the host."""

_SEIZE_NEW_FILES = """
    def prepare():
        os.mkdir("place")
    def flip():
        for place, folders, names in os.walk("."):
            for name in names:
                path = os.path.join(place, name)
                if not os.path.islink(path):
                    os.unlink(path)
                    os.symlink(CANARY["writable_file"], path)
"""
"""Replaces every new file by a link, including temporary names."""

_SEIZE_NEW_DIRECTORIES = """
    import shutil
    def prepare():
        pass
    def flip():
        for name in os.listdir():
            if os.path.isdir(name) and not os.path.islink(name):
                os.rename(name, "taken")
                os.symlink(CANARY["directory"], name)
                shutil.rmtree("taken")
"""

_GROW_AND_SHRINK = """
    def prepare():
        open("file", "w").close()
    def flip():
        with open("file", "wb") as file:
            file.write(b"x" * 3_000_000)
            file.truncate(10)
"""

_LOOP = """
    prepare()
    print("ready", flush=True)
    while not os.path.exists("stop"):
        try:
            flip()
        except OSError:
            pass
"""


Operation = Callable[[Sandbox, int], Awaitable[object]]
"""What the host does, with the number of the round."""


async def _race(context: AttackContext, row: tuple[str, Operation]) -> Finding:
    """Run a program that switches paths, and the host's operation beside it."""
    flipping, operate = row
    source = f"    import os\n    CANARY = {context.canaries.facts()!r}\n{flipping}{_LOOP}"
    ready = anyio.Event()

    def hear(_: OutputChunk) -> None:
        ready.set()

    seen: list[object] = []
    async with context.backend.open_sandbox(_RACING) as sandbox, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(sandbox.run, python(source), on_output=hear))
        with anyio.fail_after(10):
            await ready.wait()
        with anyio.move_on_after(_RACE_S):
            for number in count():
                answer = await _answer(operate(sandbox, number))
                seen.append(answer)
        await sandbox.cancel()
    assert seen, "the host never got its turn"
    return _caught(context, seen)


async def _answer(call: Awaitable[object]) -> object:
    try:
        return await call
    except WorkspaceError as error:
        return error


def _caught(context: AttackContext, seen: list[object]) -> Finding:
    leaked = any(context.canaries.secret in str(answer) for answer in seen)
    touched = context.canaries.touched()
    evidence = f"secret read: {leaked}, canaries touched: {touched}, in {len(seen)} rounds"
    return Finding(breached=leaked or touched, evidence=evidence)


async def _is_noticed(context: AttackContext) -> Finding:
    """Show that the detector sees both kinds of success: the secret, read as the host reads."""
    async with context.backend.open_sandbox(TIGHT) as sandbox:
        await sandbox.write_file(_FILE, context.canaries.secret.encode())
        return _caught(context, [await _answer(sandbox.read_file(_FILE))])


async def _read_at_most(sandbox: Sandbox) -> int:
    content = await sandbox.read_file(_FILE, max_bytes=1_000_000)
    assert len(content) <= 1_000_000, f"{len(content)} bytes were read, a million was allowed"
    return len(content)


async def _write_and_read(sandbox: Sandbox, path: PurePosixPath) -> object:
    await _answer(sandbox.write_file(path, b"astray"))
    return await _answer(sandbox.read_file(path))


_RACES: dict[str, tuple[str, Operation]] = {
    "a_directory_that_turns_into_a_link_while_it_is_read": (
        _FLIP_DIRECTORY,
        lambda sandbox, _: sandbox.read_file(_PLACE / "secret"),
    ),
    "a_directory_that_turns_into_a_link_while_it_is_written": (
        _FLIP_DIRECTORY,
        lambda sandbox, number: sandbox.write_file(_PLACE / f"new-{number % 5}", b"astray"),
    ),
    "a_directory_that_turns_into_a_link_while_a_file_in_it_is_replaced": (
        _FLIP_DIRECTORY,
        lambda sandbox, _: sandbox.write_file(_PLACE / "writable", b"astray"),
    ),
    "a_directory_that_turns_into_a_link_while_it_is_listed": (
        _FLIP_DIRECTORY,
        lambda sandbox, _: sandbox.list_files(),
    ),
    "a_directory_that_turns_into_a_link_while_it_is_removed": (
        _FLIP_DIRECTORY,
        lambda sandbox, _: sandbox.remove_path(_PLACE),
    ),
    "a_directory_that_turns_into_a_link_while_one_is_made_in_it": (
        _FLIP_DIRECTORY,
        lambda sandbox, number: sandbox.make_directory(_PLACE / f"new-{number % 5}/deep"),
    ),
    "a_file_that_turns_into_a_link_while_it_is_read": (
        _FLIP_FILE,
        lambda sandbox, _: sandbox.read_file(_FILE),
    ),
    "a_file_that_turns_into_a_link_while_it_is_written": (
        _FLIP_FILE,
        lambda sandbox, _: sandbox.write_file(_FILE, b"astray"),
    ),
    "a_passing_file_that_is_seized_while_it_is_written": (
        _SEIZE_NEW_FILES,
        lambda sandbox, number: _write_and_read(sandbox, _PLACE / f"new-{number}"),
    ),
    "a_new_directory_that_is_seized_while_it_is_made": (
        _SEIZE_NEW_DIRECTORIES,
        lambda sandbox, number: sandbox.write_file(
            PurePosixPath(f"new-{number % 7}/deep/file"), b"astray"
        ),
    ),
    "a_file_that_grows_and_shrinks_while_it_is_read": (
        _GROW_AND_SHRINK,
        lambda sandbox, _: _read_at_most(sandbox),
    ),
}

RACES = build_attacks(
    _RACES, _race, control=_is_noticed, config=_CONFIG, name="{name}_leads_nowhere"
)
