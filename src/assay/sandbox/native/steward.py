"""Keeps the boxes: makes, hands out and removes the file systems of sandboxes.

Lives beside the zygote in the same namespaces, apart from it so that a mount never waits for a
clone.
"""

import array
import json
import os
import signal
import socket
from typing import Any, Final, NoReturn

from assay.sandbox.native import jail, kernel

_LARGEST_ORDER: Final = 4096
_SMALLEST_INODES: Final = 1024
_BYTES_PER_INODE: Final = 16384


def main(mounts: int) -> NoReturn:
    """Serve until the supervisor closes its end."""
    kernel.die_with_parent(signal.SIGKILL)
    channel = socket.socket(fileno=mounts)
    while message := channel.recv(_LARGEST_ORDER):
        order: dict[str, Any] = json.loads(message)
        try:
            _obey(channel, order)
        except OSError as error:
            channel.send(json.dumps({"error": str(error)}).encode())
    os._exit(0)


def _obey(channel: socket.socket, order: dict[str, Any]) -> None:
    match order["do"]:
        case "open":
            _answer_with(channel, _open_box(order["box"], order["size_bytes"]))
            return
        case "close":
            _close_box(order["box"])
        case "bind":
            _bind_box(order["box"], order["slot"])
        case "release":
            _release_slot(order["slot"])
        case unknown:
            raise OSError(f"unknown order {unknown!r}")
    channel.send(b"{}")


def _answer_with(channel: socket.socket, descriptor: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    channel.sendmsg([b"{}"], rights)
    os.close(descriptor)


def _open_box(box: str, size_bytes: int) -> int:
    place = f"{jail.BOXES}/{box}"
    os.mkdir(place)
    inodes = max(_SMALLEST_INODES, size_bytes // _BYTES_PER_INODE)
    kernel.mount_tmpfs(place, size_bytes=size_bytes, inodes=inodes, mode=0o755)
    workspace, temporary = (f"{place}/{folder}" for folder in jail.BOX_FOLDERS)
    os.mkdir(workspace, 0o755)
    os.mkdir(temporary)
    os.chmod(temporary, 0o1777)
    return os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _close_box(box: str) -> None:
    place = f"{jail.BOXES}/{box}"
    kernel.unmount(place)
    os.rmdir(place)


def _bind_box(box: str, slot: str) -> None:
    for folder in jail.BOX_FOLDERS:
        kernel.bind(f"{jail.BOXES}/{box}/{folder}", f"{jail.SLOTS}/{slot}/{folder}")


def _release_slot(slot: str) -> None:
    place = f"{jail.SLOTS}/{slot}"
    for folder in jail.BOX_FOLDERS:
        target = f"{place}/{folder}"
        if os.path.ismount(target):
            kernel.unmount(target)
        os.rmdir(target)
    os.rmdir(place)
