"""Who processes are: a root that lacks most rights, and somebody else for the programs."""

import os
from collections.abc import Callable

from assay.sandbox.native.guest.jail_plan import INNER_ID


def clone_with_root(identity: int, clone: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Clone into namespaces as a root that lacks CAP_SYS_ADMIN, the way anyone may.

    The new user namespace knows two ids: root, who can still reach the interpreter to build the
    jail, and the identity to become after that, which goes by `INNER_ID` there.
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
        # Without the word to go on, the child ends.
        os.close(tells)
    return pid, pidfd


def become(identity: int) -> None:
    """Be somebody else for good, in every respect."""
    os.setgroups([])
    os.setresgid(identity, identity, identity)
    os.setresuid(identity, identity, identity)
    if 0 in (*os.getresuid(), *os.getresgid()):
        raise PermissionError("refusing to run programs as root")
