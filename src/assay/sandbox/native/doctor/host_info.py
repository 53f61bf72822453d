"""Facts about this machine, from which the doctor derives a cause.

One function reads them once, from files only. The doctor receives them as a value.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

_ALL_IDS: Final = 2**32 - 1
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The initial pid namespace has a fixed number (PROC_PID_INIT_INO)."""
_CONTAINER_MARKS: Final = (
    (".dockerenv", "docker"),
    ("run/.containerenv", "podman"),
    ("var/run/secrets/kubernetes.io", "kubernetes"),
    ("dev/lxd", "lxc"),
)
_CONTAINER_GROUPS: Final = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("lxc", "lxc"),
    ("containerd", "containerd"),
)
_EMPTY_BY_NATURE: Final = ("/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd")
"""Folders of /proc that are empty until something is mounted there; such a mount covers nothing."""
_ESCAPED_CHARACTER: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo."""

    point: str
    kind: str
    read_only: bool
    options: tuple[str, ...]
    """Of the file system, not of the mount; for cgroups they contain the controllers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """The available control groups."""

    version_1: frozenset[str] = frozenset()
    """Controllers of version 1."""
    version_2: str = ""
    """The mount point of version 2; empty if it is not mounted."""
    version_2_controllers: frozenset[str] = frozenset()
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts as the kernel or the container runtime reports them."""

    system: str = "Linux"
    release: str = ""
    uid: int = 1000
    namespace_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    """`user.max_*_namespaces`, by the name of the sysctl."""
    userns_clone: int | None = None
    """Debian's `kernel.unprivileged_userns_clone`; None if the kernel does not have it."""
    apparmor_restricts: bool = False
    """Ubuntu's `kernel.apparmor_restrict_unprivileged_userns`."""
    apparmor_profile: str = ""
    """The AppArmor profile that confines this process; empty if there is none."""
    selinux_enforcing: bool = False
    security_modules: tuple[str, ...] = ()
    """Empty also if the kernel does not list them."""
    container: str = ""
    """The container runtime around this process, as far as visible; empty on a plain host."""
    seccomp_filtered: bool = False
    mapped_ids: int = _ALL_IDS
    """The number of mapped uids; fewer than all in a user namespace."""
    chrooted: bool = False
    root_kind: str = "ext4"
    covered_proc: tuple[str, ...] = ()
    """Mount points that cover parts of /proc."""
    groups: GroupFacts = GroupFacts()

    @property
    def in_user_namespace(self) -> bool:
        return self.mapped_ids < _ALL_IDS

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor number of the kernel; None if the release has another format."""
        found = re.match(r"(\d+)\.(\d+)", self.release)
        return (int(found[1]), int(found[2])) if found else None


def read_machine(root: Path = Path("/")) -> Machine:
    """Read the facts once. Unreadable facts count as absent."""
    mounts = parse_mounts(_text(root / "proc/self/mountinfo"))
    status = _fields(_text(root / "proc/self/status"))
    name = os.uname()
    return Machine(
        system=name.sysname,
        release=name.release,
        uid=os.geteuid(),
        namespace_limits=_namespace_limits(root / "proc/sys/user"),
        userns_clone=_number(root / "proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restricts=_number(root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        == 1,
        apparmor_profile=_confining(_text(root / "proc/self/attr/current")),
        selinux_enforcing=_number(root / "sys/fs/selinux/enforce") == 1,
        security_modules=tuple(_text(root / "sys/kernel/security/lsm").strip().split(",")),
        container=_container(root),
        seccomp_filtered=status.get("Seccomp") == "2",
        mapped_ids=_mapped_ids(_text(root / "proc/self/uid_map")),
        # Only the root of the mount namespace is a mount point named "/".
        chrooted=bool(mounts) and not any(mount.point == "/" for mount in mounts),
        root_kind=next((mount.kind for mount in reversed(mounts) if mount.point == "/"), ""),
        covered_proc=tuple(
            mount.point
            for mount in mounts
            if mount.point.startswith("/proc/") and mount.point not in _EMPTY_BY_NATURE
        ),
        groups=_group_facts(root, mounts),
    )


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Parse the mounts of a process, in the order of mounting."""
    return tuple(_mounts(mountinfo.splitlines()))


def _mounts(lines: Iterable[str]) -> Iterator[Mount]:
    for line in lines:
        before, separator, after = line.partition(" - ")
        if not separator:
            continue
        _, _, _, _, point, flags, *_ = before.split(" ")
        kind, _, options = after.split(" ", 2)
        yield Mount(
            point=_ESCAPED_CHARACTER.sub(lambda found: chr(int(found[1], 8)), point),
            kind=kind,
            read_only="ro" in flags.split(","),
            options=tuple(options.split(",")),
        )


def _group_facts(root: Path, mounts: Iterable[Mount]) -> GroupFacts:
    old = [mount for mount in mounts if mount.kind == "cgroup"]
    new = [mount for mount in mounts if mount.kind == "cgroup2"]
    controllers = frozenset(option for mount in old for option in mount.options)
    top = new[0].point if new else ""
    wanted = [mount for mount in old if {"memory", "pids"}.intersection(mount.options)] or new
    return GroupFacts(
        version_1=controllers,
        version_2=top,
        version_2_controllers=frozenset(
            _text(root / top.lstrip("/") / "cgroup.controllers").split() if top else ()
        ),
        read_only=any(mount.read_only for mount in wanted),
    )


def _namespace_limits(folder: Path) -> dict[str, int]:
    try:
        names = sorted(path.name for path in folder.glob("max_*_namespaces"))
    except OSError:
        return {}
    found = {f"user.{name}": _number(folder / name) for name in names}
    return {name: limit for name, limit in found.items() if limit is not None}


def _container(root: Path) -> str:
    if _link(root / "proc/self/ns/pid") == _FIRST_PID_NAMESPACE:
        # This is no container's view, although the disk may contain marker files from its creation.
        return ""
    for mark, runtime in _CONTAINER_MARKS:
        if os.path.lexists(root / mark):
            return runtime
    told = _text(root / "run/systemd/container").strip()
    if told:
        return told
    groups = _text(root / "proc/1/cgroup")
    return next((runtime for word, runtime in _CONTAINER_GROUPS if word in groups), "")


def _confining(label: str) -> str:
    name = label.strip("\0\n ")
    # An SELinux label contains colons; it is no AppArmor profile.
    if name == "unconfined" or ":" in name or name.endswith("(unconfined)"):
        return ""
    return name.removesuffix(" (enforce)")


def _mapped_ids(uid_map: str) -> int:
    ranges = [line.split() for line in uid_map.splitlines()]
    return sum(int(fields[2]) for fields in ranges) if ranges else _ALL_IDS


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
