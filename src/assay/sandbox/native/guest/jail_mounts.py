"""The file systems of the zygote and of each execution, built from a plan.

The zygote's root has these folders of its own, in addition to the files that programs see:

    /template   the read-only root that every execution gets a copy of
    /boxes      one size-limited tmpfs per sandbox: its workspace and its /tmp
    /slots      one pair of mount points per prepared jail; shared, so that a workspace mounted
                here appears in a process that was jailed long before
    /stage      where an execution assembles its root before it moves in
    /layers     all package layers; an execution sees at most one
    /starts     the layers that open workspaces start with, read-only
    /sysctl     `/proc/sys`, read-only; the values are those of the reader's own namespaces

An execution keeps none of them: it pivots into its copy of the template and unmounts the rest.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from assay.sandbox.native.guest.jail_spec import HOSTNAME, PACKAGES, SHM_BYTES, WORKSPACE, RootPlan
from assay.sandbox.native.kernel import libc

TEMPLATE: Final = "/template"
BOXES: Final = "/boxes"
SLOTS: Final = "/slots"
STAGE: Final = "/stage"
LAYERS: Final = "/layers"
STARTS: Final = "/starts"
_SYSCTL: Final = "/sysctl"
LAYER_CONTENT: Final = "site"
BOX_FOLDERS: Final = ("workspace", "tmp")

_ASSEMBLY: Final = "/tmp"
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_DEVICES_OF_ZYGOTE: Final = ("null", "urandom")
_DEVICE_LINKS: Final = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
_DEVICE: Final = libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NOSUID
"""Writes to a device still reach it; its times and modes on the host cannot change."""
_TERMINALS: Final = "newinstance,ptmxmode=0666,mode=0620,max=64"
"""All terminals of a machine come from one pool; `max` limits the share of one execution."""
READ_ONLY: Final = libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NOSUID | libc.MOUNT_ATTR_NODEV
_ROOT_BYTES: Final = 64 << 20
_INODES: Final = 16384
_INOTIFY_OF_MACHINE: Final = "/proc/sys/fs/inotify/max_user_"
_INOTIFY_OF_NAMESPACE: Final = "/proc/sys/user/max_inotify_"
_INOTIFY_MOST: Final = {"instances": 16, "watches": 8192}
"""Per execution. The kernel also counts both for the enclosing namespaces."""


def build_zygote_root(plan: RootPlan, layers: str = "") -> None:
    """Assemble both roots in a new mount namespace and move in, which removes the host's files."""
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
    sources = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source, _ in plan.binds]
    copies = [(target, _read_if_allowed(source)) for source, target in plan.copies]
    devices = {name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in _DEVICES}
    shelf = [os.open(layers, os.O_PATH | os.O_CLOEXEC)] if layers else []
    libc.mount_tmpfs(_ASSEMBLY, size_bytes=_ROOT_BYTES, inodes=_INODES, mode=0o755)
    for place in (TEMPLATE, BOXES, SLOTS, STAGE, LAYERS, STARTS, _SYSCTL):
        os.mkdir(_ASSEMBLY + place)
    for descriptor in shelf:
        # Binds the folder itself, so that layers created later appear here too.
        libc.bind(f"/proc/self/fd/{descriptor}", _ASSEMBLY + LAYERS)
    _populate(_ASSEMBLY, plan, sources, copies)
    template = _ASSEMBLY + TEMPLATE
    libc.mount_tmpfs(template, size_bytes=_ROOT_BYTES, inodes=_INODES, mode=0o755)
    _populate(template, plan, sources, copies)
    libc.restrict_mounts(_ASSEMBLY, READ_ONLY)
    for root, names in ((_ASSEMBLY, _DEVICES_OF_ZYGOTE), (template, _DEVICES)):
        for name in names:
            libc.bind(f"/proc/self/fd/{devices[name]}", f"{root}/dev/{name}")
            libc.restrict_mounts(f"{root}/dev/{name}", _DEVICE)
    _mount_proc(_ASSEMBLY)
    libc.bind(f"{_ASSEMBLY}/proc/sys", _ASSEMBLY + _SYSCTL)
    libc.restrict_mounts(_ASSEMBLY + _SYSCTL, READ_ONLY)
    for descriptor in (*sources, *devices.values(), *shelf):
        os.close(descriptor)
    libc.pivot_into(_ASSEMBLY)


def open_places() -> None:
    """Mount the folders for workspaces and slots; needs the zygote's user and mount namespace."""
    libc.mount_tmpfs(BOXES, size_bytes=_ROOT_BYTES, inodes=_INODES, mode=0o700)
    libc.mount_tmpfs(SLOTS, size_bytes=_ROOT_BYTES, inodes=_INODES, mode=0o700)
    libc.mount(None, SLOTS, None, libc.MS_SHARED)
    # The zygote's own: matplotlib cannot be imported without a writable folder.
    libc.mount_tmpfs("/tmp", size_bytes=_ROOT_BYTES, inodes=_INODES, mode=0o700)


def open_starts() -> None:
    """Mount the folder for layers, unless that is done: each mount makes all new jails slower."""
    if not os.path.ismount(STARTS):
        libc.mount_tmpfs(STARTS, size_bytes=_ROOT_BYTES, inodes=_INODES, mode=0o700)


def enter_execution_root(slot: str, layer: str = "") -> None:
    """Give the calling process, in its own namespaces, the root that a program sees."""
    libc.set_hostname(HOSTNAME)
    libc.bind(TEMPLATE, STAGE)
    for folder, target in zip(BOX_FOLDERS, (WORKSPACE, "/tmp"), strict=True):
        os.makedirs(f"{slot}/{folder}", exist_ok=True)
        libc.bind(f"{slot}/{folder}", STAGE + target)
    if layer:
        libc.bind(f"{LAYERS}/{layer}/{LAYER_CONTENT}", STAGE + PACKAGES)
    libc.mount_tmpfs(
        f"{STAGE}/dev/shm",
        size_bytes=SHM_BYTES,
        inodes=1024,
        mode=0o1777,
        flags=libc.MS_NOEXEC,
    )
    flags = libc.MS_NOSUID | libc.MS_NOEXEC
    libc.mount("devpts", f"{STAGE}/dev/pts", "devpts", flags, _TERMINALS)
    _mount_proc(STAGE)
    # The only entry that would reveal data of the user who started Assay: key names.
    libc.bind(f"{STAGE}/dev/null", f"{STAGE}/proc/keys")
    # It has writable entries, for example for the pids of new processes.
    libc.bind(_SYSCTL, f"{STAGE}/proc/sys")
    libc.pivot_into(STAGE)


def share_inotify() -> None:
    """Leave half of the user's inotify instances and watches to programs outside of sandboxes."""
    with suppress(FileNotFoundError):
        for kind in _INOTIFY_MOST:
            with open(_INOTIFY_OF_MACHINE + kind) as limit:
                _limit_inotify(kind, max(1, int(limit.read()) // 2))


def bound_inotify() -> None:
    """Limit the inotify use of one execution; needs the rights in its own user namespace."""
    # The files are absent if the kernel has no inotify.
    with suppress(FileNotFoundError):
        for kind, most in _INOTIFY_MOST.items():
            _limit_inotify(kind, most)


def _limit_inotify(kind: str, most: int) -> None:
    descriptor = os.open(_INOTIFY_OF_NAMESPACE + kind, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"%d" % most)
    finally:
        os.close(descriptor)


def _mount_proc(root: str) -> None:
    flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
    libc.mount("proc", f"{root}/proc", "proc", flags)


def _read_if_allowed(path: str) -> bytes:
    """Return the content of a file; empty if programs may not read it."""
    with suppress(PermissionError), open(path, "rb") as file:
        return file.read()
    return b""


def _populate(
    root: str, plan: RootPlan, sources: Sequence[int], copies: Sequence[tuple[str, bytes]]
) -> None:
    for folder in (WORKSPACE, "/tmp", "/proc", "/dev/shm", "/dev/pts", PACKAGES):
        os.makedirs(root + folder, exist_ok=True)
    for path, content in plan.files:
        _write_file(root + path, content.encode())
    for path, copied in copies:
        _write_file(root + path, copied)
    for path, points_to in plan.links:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(points_to, root + path)
    for name, points_to in _DEVICE_LINKS:
        os.symlink(points_to, f"{root}/dev/{name}")
    for name in _DEVICES:
        _write_file(f"{root}/dev/{name}", b"")
    for descriptor, (_, target) in zip(sources, plan.binds, strict=True):
        _make_mount_point(root + target, descriptor)
        libc.bind(f"/proc/self/fd/{descriptor}", root + target)
        # Immediately: a later mount point below this one must not be created on the host's disk.
        libc.restrict_mounts(root + target, READ_ONLY)


def _make_mount_point(target: str, source: int) -> None:
    if os.path.exists(target):
        return
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(target)
    else:
        _write_file(target, b"")


def _write_file(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = 0o755 if content.startswith(b"#!") else 0o644
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
