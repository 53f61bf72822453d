"""Identities of processes: a root without most rights, and a different user for programs."""

import os
from collections.abc import Callable

from assay.sandbox.native.guest.jail_plan import INNER_ID


def clone_with_root(identity: int, clone: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Clone into namespaces as a root that lacks CAP_SYS_ADMIN; this needs no privilege.

    The new user namespace maps two ids. Root can still reach the interpreter to build the jail. The
    other is the identity to become after that; it is called `INNER_ID` there.
    """
    waits, tells = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = clone()
    if pid == 0:
        os.close(tells)
        if not os.read(waits, 1):
            os._exit(1)
        os.close(waits)
        return pid, pidfd
    os.close(waits)
    try:
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as ids:
                ids.write(f"0 0 1\n{INNER_ID} {identity} 1\n")
        os.write(tells, b"1")
    finally:
        # If nothing was written, the child exits.
        os.close(tells)
    return pid, pidfd


def become(identity: int) -> None:
    """Change uid and gid permanently, including the saved ones, and drop all groups."""
    os.setgroups([])
    os.setresgid(identity, identity, identity)
    os.setresuid(identity, identity, identity)
    if 0 in (*os.getresuid(), *os.getresgid()):
        raise PermissionError("refusing to run programs as root")
