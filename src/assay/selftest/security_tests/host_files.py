"""Attacks on the host's file operations: traps in the workspace.

A program prepares the workspace, then the host reads or writes as a user would. A `WorkspaceError`
is correct; a read or write elsewhere, a hang or another error is not.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

import anyio

from assay.contracts.errors import FileTooLargeError, WorkspaceError
from assay.contracts.execution import Isolation
from assay.contracts.ports import Sandbox
from assay.selftest.programs import describe, python
from assay.selftest.security_tests.attack import (
    TIGHT,
    AttackConfig,
    AttackContext,
    Finding,
    build_attack,
    build_attacks,
)

_CONFIG = AttackConfig(group="host_files")
_TRAP = PurePosixPath("trap")
_TIMEOUT_S = 20.0
_ROOMY = replace(TIGHT, wall_s=20.0, cpu_s=20.0, memory_mb=256, disk_mb=64)

Operation = Callable[[Sandbox], Awaitable[object]]


async def _prepare(sandbox: Sandbox, context: AttackContext, source: str) -> None:
    facts = f"import os\nCANARY = {context.canaries.facts()!r}\n"
    program = replace(python(source), source=facts.encode() + python(source).source)
    result = await sandbox.run(program)
    assert result.succeeded, f"the trap could not be set: {describe(result)}"


async def _attempt(operation: Awaitable[object]) -> object:
    """Run a file operation of the host; an error of the contract is an answer, a hang is not."""
    try:
        with anyio.fail_after(_TIMEOUT_S):
            return await operation
    except WorkspaceError as error:
        return error
    except TimeoutError as error:
        raise AssertionError(f"the host hung for {_TIMEOUT_S:g} s") from error


async def _springs(context: AttackContext, row: tuple[str, Operation]) -> Finding:
    """Set a trap, and let the host work in it."""
    trap, operation = row
    async with context.backend.open_sandbox(_ROOMY) as sandbox:
        await _prepare(sandbox, context, trap)
        return _caught(context, await _attempt(operation(sandbox)))


def _caught(context: AttackContext, answer: object) -> Finding:
    leaked = context.canaries.secret in str(answer)
    if context.canaries.touched() or leaked:
        return Finding(breached=True, evidence=f"the host was led astray: {answer!r:.200}")
    return Finding(breached=False, evidence=f"{answer!r:.200}")


async def _touch_it(context: AttackContext) -> Finding:
    """Show that the detector sees a changed canary."""
    context.canaries.writable_file.write_bytes(b"changed")
    return _caught(context, None)


async def _show_it(context: AttackContext) -> Finding:
    """Show that the detector sees the secret in what the host reads."""
    async with context.backend.open_sandbox(TIGHT) as sandbox:
        await sandbox.write_file(_TRAP, context.canaries.secret.encode())
        return _caught(context, await _attempt(sandbox.read_file(_TRAP)))


_READING: dict[str, tuple[str, Operation]] = {
    "reading_a_link_does_not_read_the_host": (
        "os.symlink(CANARY['secret_file'], 'trap')",
        lambda sandbox: sandbox.read_file(_TRAP),
    ),
    "reading_below_a_linked_directory_does_not_read_the_host": (
        "os.symlink(CANARY['directory'], 'trap')",
        lambda sandbox: sandbox.read_file(_TRAP / "secret"),
    ),
    "reading_a_relative_link_does_not_read_the_host": (
        "os.symlink('../' * 30 + CANARY['secret_file'].lstrip('/'), 'trap')",
        lambda sandbox: sandbox.read_file(_TRAP),
    ),
    "reading_a_chain_of_links_does_not_read_the_host": (
        """
            os.mkdir("a")
            os.symlink("../" * 30, "a/up")
            os.symlink("a/up" + CANARY["secret_file"], "b")
            os.symlink("b", "trap")
        """,
        lambda sandbox: sandbox.read_file(_TRAP),
    ),
    "reading_a_magic_link_does_not_read_the_host": (
        "os.symlink('/proc/self/root' + CANARY['secret_file'], 'trap')",
        lambda sandbox: sandbox.read_file(_TRAP),
    ),
    "reading_a_link_to_the_environment_does_not_read_the_host": (
        "os.symlink('/proc/%d/environ' % CANARY['victim_pid'], 'trap')",
        lambda sandbox: sandbox.read_file(_TRAP),
    ),
    "reading_a_hard_link_does_not_read_the_host": (
        """
            try:
                os.link(CANARY["secret_file"], "trap")
            except OSError:
                open("trap", "w").close()
        """,
        lambda sandbox: sandbox.read_file(_TRAP),
    ),
    "listing_a_linked_directory_does_not_list_the_host": (
        "os.symlink(CANARY['directory'], 'trap')",
        lambda sandbox: _names_in(sandbox, _TRAP),
    ),
}

_WRITING: dict[str, tuple[str, Operation]] = {
    "writing_to_a_link_does_not_write_to_the_host": (
        "os.symlink(CANARY['writable_file'], 'trap')",
        lambda sandbox: sandbox.write_file(_TRAP, b"astray"),
    ),
    "writing_below_a_linked_directory_does_not_write_to_the_host": (
        "os.symlink(CANARY['directory'], 'trap')",
        lambda sandbox: sandbox.write_file(_TRAP / "new", b"astray"),
    ),
    "writing_to_a_dangling_link_does_not_write_to_the_host": (
        "os.symlink(CANARY['directory'] + '/new', 'trap')",
        lambda sandbox: sandbox.write_file(_TRAP, b"astray"),
    ),
    "making_a_directory_below_a_link_does_not_make_it_on_the_host": (
        "os.symlink(CANARY['directory'], 'trap')",
        lambda sandbox: sandbox.make_directory(_TRAP / "new/deep"),
    ),
    "removing_below_a_link_does_not_remove_from_the_host": (
        "os.symlink(CANARY['directory'], 'trap')",
        lambda sandbox: sandbox.remove_path(_TRAP / "writable"),
    ),
    "removing_a_link_does_not_remove_from_the_host": (
        "os.symlink(CANARY['directory'], 'trap')",
        lambda sandbox: sandbox.remove_path(_TRAP),
    ),
    "removing_a_tree_with_links_does_not_remove_from_the_host": (
        """
            os.makedirs("trap/deep")
            os.symlink(CANARY["directory"], "trap/deep/link")
            os.symlink(CANARY["writable_file"], "trap/file")
        """,
        lambda sandbox: sandbox.remove_path(_TRAP),
    ),
    "moving_the_workspace_away_does_not_move_the_host": (
        """
            here = os.getcwd()
            for act in (
                lambda: os.rename(here, here + ".old"),
                lambda: os.rmdir(here),
                lambda: os.symlink(CANARY["directory"], here),
            ):
                try:
                    act()
                except OSError:
                    pass
        """,
        lambda sandbox: sandbox.write_file(PurePosixPath("new"), b"astray"),
    ),
}


async def _names_in(sandbox: Sandbox, path: PurePosixPath) -> str:
    entries = await sandbox.list_files(path)
    # The canary directory contains a file of this name: seeing it is as good as reading it.
    assert not any(entry.path.name == "writable" for entry in entries), "it lists the host"
    return str(entries)


READING = build_attacks(_READING, _springs, control=_show_it, config=_CONFIG)
WRITING = build_attacks(_WRITING, _springs, control=_touch_it, config=_CONFIG)

Breaks = Callable[[Sandbox], Awaitable[str]]
"""Does what a user would do, and returns what broke; empty if nothing did."""


async def _use_all(sandbox: Sandbox) -> str:
    """Read, write, list and remove the trap; only an answer or a rejection is correct."""
    acts: dict[str, Operation] = {
        "read_file": lambda sandbox: sandbox.read_file(_TRAP, max_bytes=1 << 20),
        "list_files": lambda sandbox: sandbox.list_files(),
        "list_files of it": lambda sandbox: sandbox.list_files(_TRAP),
        "write_file": lambda sandbox: sandbox.write_file(_TRAP, b"new"),
        "write_file below": lambda sandbox: sandbox.write_file(_TRAP / "below", b"new"),
        "make_directory": lambda sandbox: sandbox.make_directory(_TRAP),
        "remove_path": lambda sandbox: sandbox.remove_path(_TRAP),
        "write_file afterwards": lambda sandbox: sandbox.write_file(PurePosixPath("z"), b"new"),
    }
    for name, act in acts.items():
        try:
            await act(sandbox)
        except WorkspaceError:
            continue
        except (OSError, ValueError, RecursionError, UnicodeError, MemoryError) as error:
            return f"{name} raised {error!r:.200}"
    return ""


async def _breaks(context: AttackContext, trap: str, use: Breaks = _use_all) -> Finding:
    async with context.backend.open_sandbox(_ROOMY) as sandbox:
        await _prepare(sandbox, context, trap)
        try:
            with anyio.fail_after(_TIMEOUT_S):
                broken = await use(sandbox)
        except TimeoutError:
            broken = f"the host hung for {_TIMEOUT_S:g} s"
    return Finding(breached=bool(broken), evidence=broken)


async def _reads_small(sandbox: Sandbox) -> str:
    """Read the trap, which must be rejected for its size."""
    try:
        content = await sandbox.read_file(_TRAP, max_bytes=1 << 16)
    except FileTooLargeError:
        return ""
    return f"{len(content)} bytes were read"


async def _never_returns(context: AttackContext) -> Finding:
    """Show that the detector sees an operation that breaks."""

    async def use(sandbox: Sandbox) -> str:
        content = await sandbox.read_file(_TRAP)
        return f"{len(content)} bytes were read"

    return await _breaks(context, trap="open('trap', 'w').write('small')", use=use)


_AWKWARD = {
    "a_pipe_does_not_hang_the_host": "os.mkfifo('trap')",
    "a_socket_does_not_break_the_host": """
        import socket, stat
        try:
            socket.socket(socket.AF_UNIX).bind("trap")
        except OSError:
            os.mknod("trap", stat.S_IFSOCK | 0o600)
    """,
    "a_link_to_itself_does_not_hang_the_host": "os.symlink('trap', 'trap')",
    "a_link_to_endless_data_does_not_hang_the_host": "os.symlink('/dev/zero', 'trap')",
    "a_link_to_a_terminal_does_not_hang_the_host": "os.symlink('/dev/tty', 'trap')",
    "an_unreadable_file_does_not_break_the_host": (
        "open('trap', 'w').write('x'); os.chmod('trap', 0)"
    ),
    "an_unreadable_directory_does_not_break_the_host": """
        os.makedirs("trap/deep")
        open("trap/deep/file", "w").close()
        os.chmod("trap/deep", 0)
        os.chmod("trap", 0)
    """,
    "a_closed_workspace_does_not_break_the_host": (
        "open('trap', 'w').write('x'); os.chmod('.', 0)"
    ),
    "special_bits_do_not_break_the_host": (
        "open('trap', 'w').write('x')\n"
        "try:\n    os.chmod('trap', 0o6777)\nexcept OSError:\n    os.chmod('trap', 0o777)"
    ),
    "an_immutable_file_does_not_break_the_host": """
        import fcntl, struct
        with open("trap", "w") as file:
            try:
                fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x30))  # immutable, append only
            except OSError:
                pass
    """,
    "many_entries_do_not_break_the_host": """
        os.mkdir("trap")
        try:
            for number in range(20_000):
                os.close(os.open(f"trap/{number}", os.O_CREAT))
        except OSError:
            pass
    """,
    "evil_names_do_not_break_the_host": r"""
        os.mkdir("trap")
        for name in [b"\n", b"\xff" * 255, b"...", b"..\n..", b"-rf", b"\x1b[2J", b"\\..\\..",
                     b"%s%n", b"a\x00b"[:1], b"\xed\xa0\x80", b"$(id)", b"con", b" ", b"\r"]:
            open(b"trap/" + name, "w").close()
    """,
    "a_file_of_a_terabyte_does_not_break_the_host": (
        "open('trap', 'w').close()\n"
        "try:\n    os.truncate('trap', 1 << 40)\nexcept OSError:\n    os.truncate('trap', 1 << 25)"
    ),
    "a_crossed_link_tree_does_not_break_the_host": """
        os.mkdir("trap")
        for number in range(40):
            os.symlink("../trap", f"trap/{number}")
    """,
    "many_hard_links_do_not_break_the_host": """
        open("trap", "w").close()
        for number in range(1000):
            os.link("trap", f"also-{number}")
    """,
}

AWKWARD = build_attacks(_AWKWARD, _breaks, control=_never_returns, config=_CONFIG)

DEEP = build_attack(
    "deep_directories_do_not_break_the_host",
    attack=partial(
        _breaks,
        trap="""
            os.mkdir("trap")
            os.chdir("trap")
            for _ in range(2000):
                os.mkdir("deeper-and-deeper")
                os.chdir("deeper-and-deeper")
            open("bottom", "w").close()
        """,
        use=_use_all,
    ),
    control=_never_returns,
    config=replace(
        _CONFIG,
        not_applicable_from=Isolation.KERNEL,
        moot_because="without openat2 every step is walked: the sandbox keeps itself busy",
    ),
)

HUGE = build_attack(
    "a_file_of_a_terabyte_is_too_large_to_read",
    attack=partial(
        _breaks,
        trap=_AWKWARD["a_file_of_a_terabyte_does_not_break_the_host"],
        use=_reads_small,
    ),
    control=partial(_breaks, trap="open('trap', 'w').write('small')", use=_reads_small),
    config=_CONFIG,
)
