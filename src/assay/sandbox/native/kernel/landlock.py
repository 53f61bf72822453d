"""Confines this process to a few paths of the host's own file system, with Landlock.

This is for hosts that refuse namespaces. Paths that are not listed cannot be opened, and TCP is
blocked. From Linux 6.12 on, neither signals nor abstract sockets reach a process outside.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from assay.sandbox.native.kernel import syscalls

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_MAKE_CHAR: Final = 1 << 6
_MAKE_BLOCK: Final = 1 << 11
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15

_READ_ONLY: Final = _EXECUTE | _READ_FILE | _READ_DIR
_NEVER: Final = _MAKE_CHAR | _MAKE_BLOCK
_FOR_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_FILE_RIGHTS_SINCE: Final = ((1, (1 << 13) - 1), (2, 1 << 13), (3, _TRUNCATE), (5, _IOCTL_DEV))
"""The rights that each ABI version added; 1 << 13 is moving files between directories."""

_TCP_SINCE: Final = 4
_TCP_BIND_AND_CONNECT: Final = 0b11
_SCOPES_SINCE: Final = 6
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11

_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_RULESET: Final = struct.Struct("=QQQ")
"""Handled rights for files, handled rights for the network, scopes."""
_PATH_RULE: Final = struct.Struct("=Qi")
"""Allowed rights, and the descriptor of the path that they apply beneath."""


def abi_version() -> int:
    """Return the kernel's Landlock ABI version; 0 if Landlock is absent or disabled."""
    try:
        return _call("landlock_create_ruleset", None, 0, _ASK_VERSION)
    except OSError as error:
        # A container's seccomp profile that does not know the call returns EPERM.
        if error.errno in {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}:
            return 0
        raise


def restrict(*, read_only: Sequence[str], read_write: Sequence[str], network: bool = False) -> None:
    """Allow the calling thread, and everything it starts, only the listed files.

    `read_only` includes the right to execute. The caller must have set no_new_privs and pass real
    paths: a symbolic link as the last part is refused. Open files stay open. Another call can only
    restrict further.

    Raises:
        FileNotFoundError: If a path does not exist; nothing is restricted then.
        OSError: If the kernel has no Landlock (ENOSYS), or refused.
    """
    version = abi_version()
    if version == 0:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    known = sum(rights for since, rights in _FILE_RIGHTS_SINCE if since <= version)
    with _ruleset(known, version, network=network) as ruleset:
        for path in read_only:
            _allow(ruleset, path, _READ_ONLY)
        for path in read_write:
            _allow(ruleset, path, known & ~_NEVER)
        _call("landlock_restrict_self", ruleset, 0)


@contextmanager
def _ruleset(file_rights: int, version: int, *, network: bool) -> Generator[int]:
    attributes = _RULESET.pack(
        file_rights,
        _TCP_BIND_AND_CONNECT if version >= _TCP_SINCE and not network else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPES_SINCE else 0,
    )
    # A kernel with a shorter struct accepts this one if the rest is zero.
    descriptor = _call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(kind):
            raise OSError(errno.ELOOP, "a rule needs a real path, not a symbolic link", path)
        granted = rights if stat.S_ISDIR(kind) else rights & _FOR_FILES
        _call("landlock_add_rule", ruleset, _PATH_BENEATH, _PATH_RULE.pack(granted, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(name: str, *arguments: int | bytes | None) -> int:
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    outcome = int(libc.syscall(ctypes.c_long(syscalls.table()[name]), *words))
    if outcome < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return outcome
