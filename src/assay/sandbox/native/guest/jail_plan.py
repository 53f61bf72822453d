"""The plan of a jail: decided on the trusted side and sent to the launcher as JSON."""

import json
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlan:
    """The read-only file system of a jail. Every path is absolute and as seen in the jail."""

    binds: Pairs = ()
    """(path on the host, path in the jail); files and directories, read-only."""
    links: Pairs = ()
    """(path in the jail, link target)."""
    files: Pairs = ()
    """(path in the jail, content); content that starts with `#!` becomes executable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailPlan:
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


def plan_from_json(text: bytes) -> JailPlan:
    fields = json.loads(text)
    root = RootPlan(**{name: _pairs(value) for name, value in fields.pop("root").items()})
    return JailPlan(
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
