"""Creates, mounts and removes the file systems of workspaces.

Runs as a separate process beside the zygote, in the same namespaces, so that a mount never waits
for a clone.
"""

import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any, Final, NoReturn

from assay.sandbox.native.guest import jail_mounts
from assay.sandbox.native.guest.jail_spec import WORKSPACE
from assay.sandbox.native.guest.messages import receive_part
from assay.sandbox.native.kernel import libc
from assay.sandbox.native.kernel.rmtree import remove_tree

_LARGEST_ORDER: Final = 4096
_MOST_DESCRIPTORS: Final = 4
_UNANSWERED: Final = frozenset({"close", "release", "detach"})
_PROBE: Final = "user.assay"
_SMALLEST_INODES: Final = 1024
_BYTES_PER_INODE: Final = 16384


class OnlyWorkspace:
    """Contained tier: the container has one file system for the workspace and one for `/tmp`.

    A container holds one sandbox, so every request means this workspace. Nothing is mounted, and
    the workspace is removed with the container.
    """

    def open(self, box: str, size_bytes: int, start: str = "") -> list[int]:
        """Create a workspace and return a descriptor of it.

        With a layer to start with, a second descriptor is that of the folder with the changes.
        """
        del box, size_bytes
        _refuse(start)
        return [_open_folder(WORKSPACE)]

    def close(self, box: str) -> None:
        """Remove a workspace."""

    def bind(self, box: str, slot: str) -> None:
        """Mount a workspace into the process that waits at a slot."""

    def release(self, slot: str) -> None:
        """Remove the mounts of a slot."""

    def attach(self, start: str, mount: int) -> None:
        """Make a layer available to `open`."""
        del mount
        _refuse(start)

    def detach(self, start: str) -> None:
        """Forget a layer. Workspaces that started with it keep it."""


def _refuse(start: str) -> None:
    if start:
        raise OSError("workspaces cannot start with a mounted layer here")


def _open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def main(mounts: int, workspaces: OnlyWorkspace) -> NoReturn:
    """Serve until the supervisor closes its end."""
    libc.die_with_parent(signal.SIGKILL)
    channel = socket.socket(fileno=mounts)
    while True:
        message, received, _ = receive_part(channel, _LARGEST_ORDER, _MOST_DESCRIPTORS)
        if not message:
            os._exit(0)
        order: dict[str, Any] = json.loads(message)
        try:
            _obey(channel, workspaces, order, received)
        except OSError as error:
            if order["do"] not in _UNANSWERED:
                channel.send(json.dumps({"error": str(error)}).encode())
        finally:
            _close(received)


def _obey(
    channel: socket.socket, workspaces: OnlyWorkspace, order: dict[str, Any], received: list[int]
) -> None:
    match order["do"]:
        case "open":
            start = order.get("start", "")
            _answer_with(channel, workspaces.open(order["box"], order["size_bytes"], start))
        case "attach":
            workspaces.attach(order["start"], received[0])
            channel.send(b"{}")
        case "detach":
            workspaces.detach(order["start"])
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


def _answer_with(channel: socket.socket, descriptors: list[int]) -> None:
    try:
        socket.send_fds(channel, [b"{}"], descriptors)
    finally:
        _close(descriptors)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _create_folders(place: str) -> str:
    workspace, temporary = (f"{place}/{folder}" for folder in jail_mounts.BOX_FOLDERS)
    os.mkdir(workspace, 0o755)
    os.mkdir(temporary, 0o755)
    return workspace


class MountedWorkspaces(OnlyWorkspace):
    """Each workspace is a separate tmpfs in the zygote's mount namespace."""

    def open(self, box: str, size_bytes: int, start: str = "") -> list[int]:
        place = f"{jail_mounts.BOXES}/{box}"
        os.mkdir(place)
        inodes = max(_SMALLEST_INODES, size_bytes // _BYTES_PER_INODE)
        libc.mount_tmpfs(place, size_bytes=size_bytes, inodes=inodes, mode=0o755)
        workspace = _create_folders(place)
        if not start:
            return [_open_folder(workspace)]
        try:
            upper = _mount_layer(place, workspace, f"{jail_mounts.STARTS}/{start}")
        except OSError:
            self.close(box)
            raise
        return [_open_folder(workspace), _open_folder(upper)]

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

    def attach(self, start: str, mount: int) -> None:
        jail_mounts.open_starts()
        place = f"{jail_mounts.STARTS}/{start}"
        os.mkdir(place)
        try:
            libc.attach_mount(mount, place)
        except OSError:
            os.rmdir(place)
            raise

    def detach(self, start: str) -> None:
        place = f"{jail_mounts.STARTS}/{start}"
        libc.unmount(place)
        os.rmdir(place)


def _mount_layer(place: str, workspace: str, layer: str) -> str:
    """Mount a layer at the workspace; return the folder that receives the changes.

    Programs never see that folder: a bind of the workspace does not lead to it.
    """
    upper, work = f"{place}/upper", f"{place}/work"
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o700)
    # Without extended attributes, a program could not replace a directory of the layer.
    os.setxattr(upper, _PROBE, b"")
    os.removexattr(upper, _PROBE)
    libc.mount_overlay(workspace, lower=layer, upper=upper, work=work)
    return upper


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

    def open(self, box: str, size_bytes: int, start: str = "") -> list[int]:
        del size_bytes
        _refuse(start)
        place = f"{self._root}/{box}"
        os.mkdir(place, 0o700)
        return [_open_folder(_create_folders(place))]

    def close(self, box: str) -> None:
        remove_tree(f"{self._root}/{box}")
