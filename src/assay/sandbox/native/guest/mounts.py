"""Creates, mounts and removes the file systems of workspaces.

Runs as a separate process beside the zygote, in the same namespaces, so that a mount never waits
for a clone.
"""

import array
import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any, Final, NoReturn

from assay.sandbox.native.guest import jail_mounts
from assay.sandbox.native.guest.jail_spec import WORKSPACE
from assay.sandbox.native.kernel import libc
from assay.sandbox.native.kernel.rmtree import remove_tree

_LARGEST_ORDER: Final = 4096
_UNANSWERED: Final = frozenset({"close", "release"})
_SMALLEST_INODES: Final = 1024
_BYTES_PER_INODE: Final = 16384


class OnlyWorkspace:
    """Contained tier: the container has one file system for the workspace and one for `/tmp`.

    A container holds one sandbox, so every request means this workspace. Nothing is mounted, and
    the workspace is removed with the container.
    """

    def open(self, box: str, size_bytes: int) -> int:
        """Create an empty workspace and return a descriptor of it."""
        del box, size_bytes
        return os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, box: str) -> None:
        """Remove a workspace."""

    def bind(self, box: str, slot: str) -> None:
        """Mount a workspace into the process that waits at a slot."""

    def release(self, slot: str) -> None:
        """Remove the mounts of a slot."""


def main(mounts: int, workspaces: OnlyWorkspace) -> NoReturn:
    """Serve until the supervisor closes its end."""
    libc.die_with_parent(signal.SIGKILL)
    channel = socket.socket(fileno=mounts)
    while message := channel.recv(_LARGEST_ORDER):
        order: dict[str, Any] = json.loads(message)
        try:
            _obey(channel, workspaces, order)
        except OSError as error:
            if order["do"] not in _UNANSWERED:
                channel.send(json.dumps({"error": str(error)}).encode())
    os._exit(0)


def _obey(channel: socket.socket, workspaces: OnlyWorkspace, order: dict[str, Any]) -> None:
    match order["do"]:
        case "open":
            _answer_with(channel, workspaces.open(order["box"], order["size_bytes"]))
        case "bind":
            workspaces.bind(order["box"], order["slot"])
            channel.send(b"{}")
        case "close":
            workspaces.close(order["box"])
        case "release":
            for slot in order["slots"]:
                # An error in one slot must not keep the others mounted.
                with suppress(OSError):
                    workspaces.release(slot)
        case unknown:
            raise OSError(f"unknown order {unknown!r}")


def _answer_with(channel: socket.socket, descriptor: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    channel.sendmsg([b"{}"], rights)
    os.close(descriptor)


def _create_folders(place: str) -> int:
    workspace, temporary = (f"{place}/{folder}" for folder in jail_mounts.BOX_FOLDERS)
    os.mkdir(workspace, 0o755)
    os.mkdir(temporary, 0o755)
    return os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


class MountedWorkspaces(OnlyWorkspace):
    """Each workspace is a separate tmpfs in the zygote's mount namespace."""

    def open(self, box: str, size_bytes: int) -> int:
        place = f"{jail_mounts.BOXES}/{box}"
        os.mkdir(place)
        inodes = max(_SMALLEST_INODES, size_bytes // _BYTES_PER_INODE)
        libc.mount_tmpfs(place, size_bytes=size_bytes, inodes=inodes, mode=0o755)
        return _create_folders(place)

    def close(self, box: str) -> None:
        place = f"{jail_mounts.BOXES}/{box}"
        libc.unmount(place)
        os.rmdir(place)

    def bind(self, box: str, slot: str) -> None:
        for folder in jail_mounts.BOX_FOLDERS:
            # Either this or the process that waits there creates the mount point.
            os.makedirs(f"{jail_mounts.SLOTS}/{slot}/{folder}", exist_ok=True)
            libc.bind(f"{jail_mounts.BOXES}/{box}/{folder}", f"{jail_mounts.SLOTS}/{slot}/{folder}")

    def release(self, slot: str) -> None:
        place = f"{jail_mounts.SLOTS}/{slot}"
        for folder in jail_mounts.BOX_FOLDERS:
            target = f"{place}/{folder}"
            if os.path.ismount(target):
                libc.unmount(target)
            _remove_if_there(target)
        _remove_if_there(place)


def _remove_if_there(folder: str) -> None:
    # A process that is killed early has not created all of them.
    with suppress(FileNotFoundError):
        os.rmdir(folder)


class FolderWorkspaces(OnlyWorkspace):
    """Landlock tier: each workspace is a host folder; the usage monitor limits its size.

    A program receives the path, so no mount is needed.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def open(self, box: str, size_bytes: int) -> int:
        del size_bytes
        place = f"{self._root}/{box}"
        os.mkdir(place, 0o700)
        return _create_folders(place)

    def close(self, box: str) -> None:
        remove_tree(f"{self._root}/{box}")
