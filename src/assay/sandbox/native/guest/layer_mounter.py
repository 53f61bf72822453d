"""Mounts of workspace layers for the jails, made by the launcher, which sees the host's files.

A mount is read-only and attached nowhere; the mounts process attaches it in the jails' namespace.
If programs run as another user, that user owns the files in this mount, but not on the disk.
"""

import json
import os
import socket
from contextlib import suppress
from typing import Final, NoReturn

from assay.sandbox.native.guest.jail_mounts import READ_ONLY
from assay.sandbox.native.guest.jail_spec import INNER_ID
from assay.sandbox.native.kernel import libc

_LARGEST_REQUEST: Final = 1 << 16


class LayerMounter:
    """Answers requests for mounts, one after another, in processes that end with the answer."""

    def __init__(self, requests: int, owner: int | None) -> None:
        self.requests = requests
        self._owner = owner
        """The user of programs, if it is not the launcher's."""
        self._channel = socket.socket(fileno=requests)

    def serve_one(self) -> bool:
        """Answer one request; return False if the supervisor has closed its end."""
        message = self._channel.recv(_LARGEST_REQUEST)
        if not message:
            return False
        folder = json.loads(message)["folder"]
        pid = os.fork()
        if pid == 0:
            self._answer(folder)
        os.waitpid(pid, 0)
        return True

    def _answer(self, folder: str) -> NoReturn:
        # The supervisor may be gone.
        with suppress(OSError):
            try:
                mount = self._mount(folder)
            except OSError as error:
                self._channel.send(json.dumps({"error": str(error)}).encode())
            else:
                socket.send_fds(self._channel, [b"{}"], [mount])
        os._exit(0)

    def _mount(self, folder: str) -> int:
        if self._owner is None:
            uid, gid = os.getuid(), os.getgid()
            libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
            libc.map_own_ids(INNER_ID, uid, gid)
            mount = libc.copy_mount(folder)
            libc.restrict_copied_mount(mount, READ_ONLY)
            return mount
        mount = libc.copy_mount(folder)
        mapping = _map_owner(self._owner)
        libc.restrict_copied_mount(mount, READ_ONLY, user_namespace=mapping)
        return mount


def _map_owner(owner: int) -> int:
    """Return a user namespace that maps our own files to another owner."""
    waits, tells = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = libc.clone_process(libc.CLONE_NEWUSER)
    if pid == 0:
        os.close(tells)
        os.read(waits, 1)
        os._exit(0)
    try:
        for name, ours in (("uid_map", os.getuid()), ("gid_map", os.getgid())):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as ids:
                ids.write(f"{ours} {owner} 1\n")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(tells)
        os.close(waits)
        os.waitpid(pid, 0)
        os.close(pidfd)
