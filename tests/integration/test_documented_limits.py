"""What SECURITY.md lists as a known limit: these tests say when a limit is gone, or has grown."""

import sysconfig
from pathlib import Path

import pytest

from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend
from tests.support.backends import TIERS, Tier, open_native
from tests.support.native import python

PACKAGES = str(Path(sysconfig.get_path("purelib")).resolve())
LOOK = """
import ctypes, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)

def tried(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__

def watch():
    return libc.inotify_add_watch(libc.inotify_init(), b"/usr/bin", 0x20) > 0

def lock():
    with open("/usr/bin/env", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True

print("locked", tried(lock))
print("watched", tried(watch))
print("descriptors", tried(lambda: os.listdir("/proc/self/fd") > []))
print("processes", tried(lambda: os.listdir("/proc/self/task") > []))
print("terminal", tried(lambda: len(os.openpty())))
print("mounts", tried(lambda: open("/proc/self/mountinfo").read()))
"""


@pytest.mark.parametrize("tier", TIERS)
async def test_what_a_program_can_do_to_readable_files_of_the_host(tier: Tier) -> None:
    async with open_native(tier) as backend:
        said = await looked(backend)

    assert said["locked"] == "True"
    assert said["watched"] == str(tier == "namespaces")


async def test_mountinfo_names_where_read_only_binds_come_from() -> None:
    async with open_native("namespaces") as backend:
        said = await looked(backend)

    # The kernel shows the path within the file system that is bound.
    sources = {line.split()[3] for line in said["mounts"].splitlines()}
    assert any(len(source) > 1 and PACKAGES.endswith(source) for source in sources)


async def test_without_namespaces_there_are_no_terminals_and_of_proc_only_the_descriptors() -> None:
    async with open_native("landlock") as backend:
        said = await looked(backend)

    assert said["terminal"] == "PermissionError"
    assert said["descriptors"] == "True"
    assert said["processes"] == "PermissionError"
    assert said["mounts"] == "PermissionError"


async def looked(backend: SandboxBackend) -> dict[str, str]:
    async with backend.open_sandbox(Limits()) as sandbox:
        result = await sandbox.run(python(LOOK))
    before, _, mounts = result.stdout.partition("mounts ")
    words = (line.split(" ", 1) for line in before.splitlines())
    return {**dict(words), "mounts": mounts.strip()}
