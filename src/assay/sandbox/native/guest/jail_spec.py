"""The plan of a jail, sent from the trusted side as JSON, and the identities of its processes.

A root without most rights builds the jail; programs run as a different user.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

Tier = Literal["namespaces", "landlock", "contained"]
"""`contained`: in a container that holds only one sandbox, on a kernel that refuses mounts
(gVisor). The container isolates the files, a pid namespace the processes."""
Pairs = tuple[tuple[str, str], ...]

INNER_ID = 1000
"""The uid and gid that a program sees as its own."""
HOSTNAME = "sandbox"
WORKSPACE = "/app"
TEMPORARY = "/tmp"
SHM_BYTES = 64 << 20
"""The size of `/dev/shm`."""
PACKAGES = "/opt/assay/packages"
"""The folder where a program finds the packages of its sandbox."""
SITE = "/opt/assay/site"
"""The folder where a program finds the packages of a virtual environment of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlan:
    """The read-only file system of a jail. Every path is absolute and as seen in the jail."""

    binds: Pairs = ()
    """(path on the host, path in the jail); files and directories, read-only."""
    copies: Pairs = ()
    """(small file on the host, path in the jail). Each jail pays for each mount, not for files."""
    links: Pairs = ()
    """(path in the jail, link target)."""
    files: Pairs = ()
    """(path in the jail, content); content that starts with `#!` becomes executable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """Everything that the launcher needs to start a zygote."""

    tier: Tier
    root: RootPlan
    argv: tuple[str, ...]
    """The zygote's command line, with paths as seen in the jail."""
    env: Pairs
    seccomp_hex: str
    readable: tuple[str, ...]
    """Landlock tier: host paths that a program may read. Empty otherwise."""
    scratch: str
    """Landlock tier: the host directory that holds the workspaces. Empty otherwise."""
    drop_to_id: int | None = None
    """The uid and gid to become if started as root. In the contained tier only workers become
    it; the different uid keeps them from our processes."""
    stages: tuple[tuple[str, ...], ...] = ()
    """Modules to import. Each stage is a separate zygote that also has the earlier stages."""
    layers: str = ""
    """The host directory of the package layers; programs see at most one of them."""
    remove: tuple[str, ...] = ()
    """What the launcher removes at its end: cgroup directories and the engine's own folder."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def spec_from_json(text: bytes) -> JailSpec:
    fields = json.loads(text)
    root = RootPlan(**{name: _pairs(value) for name, value in fields.pop("root").items()})
    return JailSpec(
        tier=fields["tier"],
        drop_to_id=fields["drop_to_id"],
        root=root,
        argv=tuple(fields["argv"]),
        env=_pairs(fields["env"]),
        stages=tuple(tuple(stage) for stage in fields["stages"]),
        seccomp_hex=fields["seccomp_hex"],
        readable=tuple(fields["readable"]),
        scratch=fields["scratch"],
        layers=fields["layers"],
        remove=tuple(fields["remove"]),
    )


def _pairs(value: list[list[str]]) -> Pairs:
    return tuple((first, second) for first, second in value)


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
