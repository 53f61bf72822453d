"""System calls that Python does not wrap; each raises OSError with the name of the call.

Also loaded inside the jail, so it imports only the standard library and the syscall table.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from assay.sandbox.native.kernel import syscalls

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
CLONE_PIDFD: Final = 0x00001000
ALL_BUT_USER: Final = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
)
ALL_NAMESPACES: Final = ALL_BUT_USER | CLONE_NEWUSER
_WITHOUT_MOUNTS: Final = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET

MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_SHARED: Final = 1 << 20
MNT_DETACH: Final = 2

MOUNT_ATTR_RDONLY: Final = 1
MOUNT_ATTR_NOSUID: Final = 2
MOUNT_ATTR_NODEV: Final = 4
_MOUNT_ATTR_IDMAP: Final = 0x100000
_OPEN_TREE_CLONE: Final = 1
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000

RESOLVE_NO_XDEV: Final = 1
RESOLVE_NO_MAGICLINKS: Final = 2
RESOLVE_NO_SYMLINKS: Final = 4
RESOLVE_BENEATH: Final = 8

_MADV_POPULATE_WRITE: Final = 23
_MADV_COLLAPSE: Final = 25
_RING_BYTES: Final = 120
"""The size of `struct io_uring_params`, which is all zero here."""
_REGISTER_BUFFERS: Final = 0

_SIGCHLD: Final = 17
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_LINUX_CAPABILITY_VERSION_3: Final = 0x20080522
_HIGHEST_CAPABILITY: Final = 63

# PyDLL keeps the GIL: no other Python thread may run during a clone.
_libc = ctypes.PyDLL(None, use_errno=True)
_HAS_SEPARATE_FILE_IDS: Final = _libc.setfsuid(ctypes.c_uint32(0xFFFFFFFF)) >= 0
"""gVisor lacks them. The test uses an id that no process can have, so nothing changes."""
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


def _check(outcome: int, what: str) -> int:
    if outcome < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return outcome


def _syscall(name: str, *arguments: object) -> int:
    number = syscalls.number(name)
    if number is None:
        raise OSError(f"this machine has no system call {name!r}")
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), name)


def clone_process(namespaces: int) -> tuple[int, int]:
    """Fork into new namespaces. Returns (pid, pidfd) in the parent and (0, -1) in the child.

    The caller must have one thread. The interpreter and the C library are not aware of the fork, so
    the child should soon become another program or fork again.
    """
    pidfd = ctypes.c_int(-1)
    flags = ctypes.c_ulong(namespaces | CLONE_PIDFD | _SIGCHLD)
    pid = _syscall("clone", flags, None, ctypes.byref(pidfd), None, None)
    return pid, pidfd.value


def clone_apart() -> tuple[int, int]:
    return clone_process(ALL_NAMESPACES)


def clone_without_mounts() -> tuple[int, int]:
    """Clone like `clone_apart`, for a kernel that has no pidfd and refuses mounts.

    The parent gets the end of a pipe instead, which becomes readable like a pidfd once the process
    is gone. A fork of that process must close its inherited end, and the process must not become
    another program.
    """
    ends, held = os.pipe2(os.O_CLOEXEC)
    flags = ctypes.c_ulong(_WITHOUT_MOUNTS | _SIGCHLD)
    pid = _syscall("clone", flags, None, None, None, None)
    if pid == 0:
        os.close(ends)
        return 0, -1
    os.close(held)
    return pid, ends


def is_own_thread(number: int) -> bool:
    """Whether an id belongs to a thread of this process."""
    try:
        _syscall("tgkill", *(ctypes.c_int(word) for word in (os.getpid(), number, 0)))
    except OSError:
        return False
    return True


def unshare(namespaces: int) -> None:
    _check(_libc.unshare(ctypes.c_int(namespaces)), "unshare")


def join_namespace(descriptor: int, kind: int) -> None:
    """Join a namespace; for a pid namespace, only later children are inside."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def map_own_ids(inner: int, outer_uid: int, outer_gid: int) -> None:
    """Map one uid and one gid for the calling process, alone in its new user namespace."""
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{inner} {outer_uid} 1"),
        ("gid_map", f"{inner} {outer_gid} 1"),
    ):
        try:
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        except OSError:
            if name == "setgroups" and not os.path.exists("/proc/self/setgroups"):
                continue  # a kernel without this file
            raise
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    outcome = _libc.mount(
        _encoded(source),
        _encoded(target),
        _encoded(kind),
        ctypes.c_ulong(flags),
        _encoded(data or None),
    )
    _check(outcome, f"mount {kind or source or flags} on {target}")


def bind(source: str, target: str) -> None:
    mount(source, target, None, MS_BIND | MS_REC)


def mount_tmpfs(target: str, *, size_bytes: int, inodes: int, mode: int, flags: int = 0) -> None:
    options = f"size={size_bytes},nr_inodes={inodes},mode={mode:o}"
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV | flags, options)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def restrict_mounts(target: str, attributes: int) -> None:
    """Add attributes to a mount and all mounts below it; existing attributes stay."""
    wanted = _MountAttributes(attributes, 0, 0, 0)
    _syscall(
        "mount_setattr",
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )


def copy_mount(folder: str) -> int:
    """Return a descriptor of a mount of this folder that is attached nowhere; links are refused."""
    flags = _OPEN_TREE_CLONE | _AT_SYMLINK_NOFOLLOW | os.O_CLOEXEC
    return _syscall(
        "open_tree",
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(folder)),
        ctypes.c_uint(flags),
    )


def restrict_copied_mount(
    mount: int, attributes: int, *, user_namespace: int | None = None
) -> None:
    """Add attributes to a mount of `copy_mount`, and the owner mapping of a user namespace."""
    mapped = 0 if user_namespace is None else _MOUNT_ATTR_IDMAP
    wanted = _MountAttributes(attributes | mapped, 0, 0, user_namespace or 0)
    _syscall(
        "mount_setattr",
        ctypes.c_int(mount),
        ctypes.c_char_p(b""),
        ctypes.c_uint(_AT_EMPTY_PATH),
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )


def attach_mount(mount: int, target: str) -> None:
    """Attach a mount of `copy_mount` at a folder."""
    _syscall(
        "move_mount",
        ctypes.c_int(mount),
        ctypes.c_char_p(b""),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
    )


def mount_overlay(target: str, *, lower: str, upper: str, work: str) -> None:
    """Mount two folders over each other; changes go to `upper`, as an unprivileged user may."""
    options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)


def unmount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def pivot_into(new_root: str) -> None:
    """Make a mount the root directory and unmount the old root with everything in it."""
    os.chdir(new_root)
    _syscall("pivot_root", ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    unmount(".")
    os.chdir("/")


def set_hostname(name: str) -> None:
    encoded = name.encode()
    _check(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname")


def _prctl(option: int, argument: int, what: str) -> None:
    _check(_libc.prctl(option, argument, 0, 0, 0), what)


def die_with_parent(signal_number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal_number, "prctl PDEATHSIG")


def set_dumpable(*, dumpable: bool) -> None:
    """Set whether the memory and descriptors of this process are accessible to its own uid."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable), "prctl DUMPABLE")


def adopt_orphans(*, adopt: bool = True) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), "prctl CHILD_SUBREAPER")


def forbid_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "prctl NO_NEW_PRIVS")


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_OWN_CAPABILITIES: Final = _CapabilityHeader(_LINUX_CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES: Final = (ctypes.c_uint32 * 6)()


def drop_capabilities() -> None:
    """Drop every capability permanently, from every set."""
    for capability in range(_HIGHEST_CAPABILITY + 1):
        # The first refusal is the first capability that this kernel does not know.
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _check(_libc.capset(ctypes.byref(_OWN_CAPABILITIES), _NO_CAPABILITIES), "capset")


class _Buffer(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _advise(address: int, length: int, advice: int, what: str) -> None:
    outcome = _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(advice))
    _check(outcome, f"madvise {what}")


def own_memory(address: int, length: int) -> None:
    """Copy the pages that this process still shares after a fork."""
    _advise(address, length, _MADV_POPULATE_WRITE, "POPULATE_WRITE")


def collapse_memory(address: int, length: int) -> None:
    """Make the kernel collapse this memory into large pages."""
    _advise(address, length, _MADV_COLLAPSE, "COLLAPSE")


def pin_memory(ranges: Sequence[tuple[int, int]]) -> None:
    """Pin the pages of these addresses for the lifetime of this process.

    Raises:
        MemoryError: If this exceeds the user's limit for pinned memory.
        OSError: If the kernel does not support this.
    """
    ring = _syscall("io_uring_setup", ctypes.c_uint(1), ctypes.create_string_buffer(_RING_BYTES))
    buffers = (_Buffer * len(ranges))(*ranges)
    try:
        _syscall(
            "io_uring_register",
            ctypes.c_int(ring),
            ctypes.c_uint(_REGISTER_BUFFERS),
            buffers,
            ctypes.c_uint(len(ranges)),
        )
    except OSError as error:
        os.close(ring)
        if error.errno == errno.ENOMEM:
            raise MemoryError("too much to pin") from error
        raise


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open a path that may not leave `directory` or pass a symlink or mount point."""
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    try:
        return _syscall(
            "openat2",
            ctypes.c_int(directory),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    return _open_name_by_name(directory, path, flags, mode)


def _open_name_by_name(directory: int, path: bytes, flags: int, mode: int) -> int:
    """Do the same where the kernel or an outer filter does not support openat2.

    Mounts cannot be in the way on such kernels, because they refuse mounts.
    """
    *above, last = [part for part in path.split(b"/") if part != b"."] or [b"."]
    if path.startswith(b"/") or b".." in (*above, last):
        raise OSError(errno.EXDEV, "openat2")
    current = os.dup(directory)
    try:
        for part in above:
            following = _open_entry(current, part, os.O_PATH | os.O_DIRECTORY, 0)
            os.close(current)
            current = following
        return _open_entry(current, last, flags, mode)
    finally:
        os.close(current)


def _open_entry(directory: int, name: bytes, flags: int, mode: int) -> int:
    """Open one entry of a folder without following a link."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode):
            raise OSError(errno.ELOOP, "symlink") from None
        raise


@contextmanager
def file_access_as(identity: int | None) -> Generator[None]:
    """Check this thread's file operations as another uid and gid, which also own its new files."""
    if identity is None:
        yield
        return
    uid, gid = os.geteuid(), os.getegid()
    # Group first, and restored last: a change of uid drops the right to change the group.
    _act_in_group(identity)
    _act_as_user(identity)
    try:
        yield
    finally:
        _act_as_user(uid)
        _act_in_group(gid)


def _act_as_user(identity: int) -> None:
    if _HAS_SEPARATE_FILE_IDS:
        _libc.setfsuid(ctypes.c_uint32(identity))
    else:
        # The raw system call, because the C library would change all threads.
        _syscall("setresuid", ctypes.c_long(-1), ctypes.c_long(identity), ctypes.c_long(-1))


def _act_in_group(identity: int) -> None:
    if _HAS_SEPARATE_FILE_IDS:
        _libc.setfsgid(ctypes.c_uint32(identity))
    else:
        _syscall("setresgid", ctypes.c_long(-1), ctypes.c_long(identity), ctypes.c_long(-1))
