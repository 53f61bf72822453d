"""What a jail is made of, decided on the trusted side and carried to the warden as JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

Tier = Literal["namespaces", "landlock", "contained"]
"""`contained`: in a container that holds one sandbox and nothing else, on a kernel that refuses to
mount (gVisor). The container is the wall for files, a pid namespace the one for processes."""
Pairs = tuple[tuple[str, str], ...]

INNER_ID = 1000
"""The uid and gid a program sees as its own."""
HOSTNAME = "sandbox"
WORKSPACE = "/app"
TEMPORARY = "/tmp"  # noqa: S108 - the jail's own
SHM_BYTES = 64 << 20
"""How much fits into `/dev/shm`."""
PACKAGES = "/opt/assay/packages"
"""Where a program finds the packages that its sandbox was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlan:
    """The read-only file system of a jail. Every path in it is absolute and in the jail's terms."""

    binds: Pairs = ()
    """(path on the host, path in the jail); files and directories, read-only."""
    links: Pairs = ()
    """(path in the jail, where it points)."""
    files: Pairs = ()
    """(path in the jail, content); a content that starts with `#!` is made executable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailPlan:
    """Everything the warden needs to start a zygote."""

    tier: Tier
    root: RootPlan
    argv: tuple[str, ...]
    """The zygote's command line, in the jail's terms."""
    env: Pairs
    seccomp_hex: str
    readable: tuple[str, ...]
    """Landlock tier: what of the host a program may read. Empty otherwise."""
    scratch: str
    """Landlock tier: the host directory that holds the boxes. Empty otherwise."""
    drop_to_id: int | None = None
    """The uid and gid to become first, when started as root. In the contained tier only workers
    become it: that they are somebody else is what keeps them from our processes."""
    stages: tuple[tuple[str, ...], ...] = ()
    """Modules to import; each stage is a zygote of its own that has those before it too."""
    layers: str = ""
    """The host directory that holds layers of packages; programs see at most one of them."""
    remove: tuple[str, ...] = ()
    """What the warden removes when all is over: cgroup directories and the engine's own folder."""

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
