"""The doctor's probes: each act does one thing that the native sandbox needs and checks its effect.

Each act runs in a separate process with its own identity and namespaces, which prints its result as
JSON. The process ends after the probe, because a filter, a namespace or a lost privilege cannot be
undone. It imports the standard library and the sandbox's own system calls only.
"""

import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from assay.sandbox.native.guest import launcher
from assay.sandbox.native.guest.jail_spec import INNER_ID, clone_with_root
from assay.sandbox.native.kernel import landlock, libc, seccomp
from assay.sandbox.native.kernel.cgroups import ControlGroups, folders_of, open_groups

PROBE_ID: Final = 1_600_065_535
"""The uid to become if started as root; it is in the range that sandboxes use."""

_CHILD_WITHIN_MS: Final = 3000


class Seen(NamedTuple):
    """The observation of a successful act."""

    detail: str
    version: int = 0
    """The version of the interface that was used, if there are several."""


Act = Callable[[], Seen]
"""May raise OSError, NoEffectError or AbsentError; any other exception is a bug."""

Clone = Callable[[int], tuple[int, int]]
"""Takes namespace flags and returns pid and pidfd; returns in both processes, like fork."""


class NoEffectError(Exception):
    """The system call succeeded, but nothing changed."""


class AbsentError(Exception):
    """The feature does not exist here, or is insufficient."""


def outcome_of(act: Act) -> dict[str, Any]:
    try:
        return {"kind": "done", **act()._asdict()}
    except OSError as error:
        return {"kind": "refused", "detail": _message(error), "errno": error.errno or 0}
    except NoEffectError as error:
        return {"kind": "no_effect", "detail": str(error)}
    except AbsentError as error:
        return {"kind": "absent", "detail": str(error)}


def _message(error: OSError) -> str:
    # The wrappers of `libc.py` name the call; the standard library names the file.
    said = error.strerror or str(error)
    return f"{error.filename}: {said}" if error.filename else said


def become_ordinary() -> None:
    """Take the identity of the sandbox's processes. A root that cannot do so stays root."""
    if os.geteuid() == 0:
        try:
            step_down()
        except OSError:
            return
        # Otherwise our own /proc entries, including uid_map, belong to root.
        libc.set_dumpable(dumpable=True)
        libc.die_with_parent(signal.SIGKILL)


def step_down(identity: int = PROBE_ID) -> None:
    os.setgroups([])
    os.setresgid(identity, identity, identity)
    os.setresuid(identity, identity, identity)


def in_namespaces(flags: int, act: Act, *, mapped: bool = True) -> Seen:
    """Run an act in a process that is cloned like the zygote, in a separate user namespace."""
    become_ordinary()
    return cloned(libc.CLONE_NEWUSER | flags, act, mapped=mapped)


def cloned(flags: int, act: Act, *, mapped: bool, clone: Clone = libc.clone_process) -> Seen:
    uid, gid = os.geteuid(), os.getegid()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = clone(flags)
    if pid == 0:
        libc.die_with_parent(signal.SIGKILL)

        def mapped_act() -> Seen:
            if mapped:
                libc.map_own_ids(INNER_ID, uid, gid)
            return act()

        os.write(writing, json.dumps(outcome_of(mapped_act)).encode())
        os._exit(0)
    os.close(writing)
    await_child(pid, pidfd)
    with os.fdopen(reading, "rb") as answer:
        return _passed_on(json.loads(answer.read() or b"{}"))


def _passed_on(outcome: dict[str, Any]) -> Seen:
    match outcome.get("kind"):
        case "done":
            return Seen(outcome["detail"], outcome["version"])
        case "refused":
            raise OSError(outcome["errno"], outcome["detail"])
        case _:
            raise NoEffectError(outcome.get("detail", "the new process died without a word"))


def await_child(pid: int, pidfd: int) -> int:
    """Wait for a child and return its status; kill it after a timeout."""
    watched = select.poll()
    watched.register(pidfd, select.POLLIN)
    if not watched.poll(_CHILD_WITHIN_MS):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    return os.waitpid(pid, 0)[1]


def expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like the assertion it is
    if not holds:
        raise NoEffectError(otherwise)


def refusal_of(action: Callable[[], object]) -> int:
    """Return the errno with which an action fails; 0 if it succeeds."""
    try:
        action()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


_PLACE: Final = "/tmp"
_FILE_SYSTEM_BYTES: Final = 1 << 20
_GROUP_BYTES: Final = 32 << 20
_SAFE_LANDLOCK: Final = 6
"""The first Landlock ABI in which a program cannot signal processes outside its own domain."""


def main(name: str) -> NoReturn:
    """Entry point, started by `probes.py`: run one act and print its result as one line of JSON."""
    libc.die_with_parent(signal.SIGKILL)
    os.umask(0o022)
    os.write(1, json.dumps(outcome_of(ACTS[name])).encode())
    os._exit(0)


def identity() -> Seen:
    step_down()
    ids = {*os.getresuid(), *os.getresgid(), *os.getgroups()}
    expect(ids == {PROBE_ID}, f"still has the ids {sorted(ids)}")
    expect(refusal_of(lambda: os.setuid(0)) == errno.EPERM, "could become root again")
    return Seen(f"root can become uid {PROBE_ID}, and not come back")


def reach_interpreter() -> Seen:
    executable = sys.executable
    step_down()
    if not os.access(executable, os.R_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"uid {PROBE_ID} cannot reach {executable}")
    return Seen(f"uid {PROBE_ID} can run {executable}")


def namespaces_of_root() -> Seen:
    def seen() -> Seen:
        expect(os.getpid() == 1, "the new process is not the first in its pid namespace")
        return Seen("root can make mount, pid, net, ipc, uts and cgroup namespaces")

    def seen_from_below() -> Seen:
        seen()
        step_down(INNER_ID)
        return Seen("root lacks CAP_SYS_ADMIN, and can make them in a user namespace")

    try:
        return cloned(libc.ALL_BUT_USER, seen, mapped=False)
    except PermissionError:
        return cloned(
            libc.ALL_NAMESPACES,
            seen_from_below,
            mapped=False,
            clone=lambda _: clone_with_root(PROBE_ID, libc.clone_apart),
        )


def user_namespace() -> Seen:
    before = os.readlink("/proc/self/ns/user")

    def seen() -> Seen:
        expect(os.readlink("/proc/self/ns/user") != before, "still in the old user namespace")
        return Seen(f"made as uid {uid}")

    become_ordinary()
    uid = os.geteuid()
    return cloned(libc.CLONE_NEWUSER, seen, mapped=False)


def uid_map() -> Seen:
    def seen() -> Seen:
        ids = (os.getuid(), os.getgid())
        expect(ids == (INNER_ID, INNER_ID), f"is {ids} inside, not {INNER_ID}")
        return Seen(f"uid {INNER_ID} inside is ours outside")

    return in_namespaces(0, seen)


def nested_user_namespace() -> Seen:
    def again() -> Seen:
        return cloned(
            libc.ALL_NAMESPACES, lambda: Seen("a namespace inside a namespace"), mapped=True
        )

    return in_namespaces(libc.ALL_BUT_USER, again)


def _mount_place() -> None:
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
    libc.mount_tmpfs(_PLACE, size_bytes=_FILE_SYSTEM_BYTES, inodes=16, mode=0o700)


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def tmpfs() -> Seen:
    def seen() -> Seen:
        _mount_place()
        expect(os.listdir(_PLACE) == [], "not empty")
        too_much = bytes(2 * _FILE_SYSTEM_BYTES)
        refusal = refusal_of(lambda: _write(f"{_PLACE}/file", too_much))
        expect(refusal == errno.ENOSPC, "its size limit is not kept")
        return Seen("mounted, and its size limit is kept")

    return in_namespaces(libc.CLONE_NEWNS, seen)


def read_only_mounts() -> Seen:
    def seen() -> Seen:
        _mount_place()
        os.mkdir(f"{_PLACE}/usr")
        libc.bind("/usr", f"{_PLACE}/usr")
        libc.restrict_mounts(_PLACE, libc.MOUNT_ATTR_RDONLY | libc.MOUNT_ATTR_NODEV)
        refusal = refusal_of(lambda: os.mkdir(f"{_PLACE}/new"))
        expect(refusal == errno.EROFS, "can still be written to")
        below = os.statvfs(f"{_PLACE}/usr").f_flag
        expect(bool(below & os.ST_RDONLY), "what is mounted below can still be written to")
        return Seen("mount_setattr makes a whole tree read-only")

    return in_namespaces(libc.CLONE_NEWNS, seen)


def proc() -> Seen:
    def seen() -> Seen:
        _mount_place()
        os.mkdir(f"{_PLACE}/proc")
        flags = libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC
        libc.mount("proc", f"{_PLACE}/proc", "proc", flags)
        listed = [name for name in os.listdir(f"{_PLACE}/proc") if name.isdigit()]
        expect(listed == ["1"], f"shows the processes {listed}")
        return Seen("a fresh /proc shows only what is in its pid namespace")

    # The zygote has a /proc too: an inner namespace may mount one only if the outer shows one.
    return in_namespaces(libc.CLONE_NEWNS | libc.CLONE_NEWPID, seen)


def pivot_root() -> Seen:
    def seen() -> Seen:
        _mount_place()
        _write(f"{_PLACE}/mark", b"")
        libc.pivot_into(_PLACE)
        left = os.listdir("/")
        expect(left == ["mark"], f"the new root holds {left}")
        return Seen("the host's files are gone from view")

    return in_namespaces(libc.CLONE_NEWNS, seen)


def own_namespace(kind: str, flag: int) -> Seen:
    before = os.readlink(f"/proc/self/ns/{kind}")

    def seen() -> Seen:
        expect(os.readlink(f"/proc/self/ns/{kind}") != before, "still in the old one")
        if kind == "net":
            devices = {name for _, name in socket.if_nameindex()}
            own = devices <= {"lo", "sit0", "tunl0", "ip6tnl0"}
            expect(own, f"sees the devices {sorted(devices)}")
            return Seen("no device but its own loopback")
        if kind == "uts":
            libc.set_hostname("probe")
            expect(os.uname().nodename == "probe", "kept its host name")
            return Seen("a host name of its own")
        return Seen("made")

    return in_namespaces(flag, seen)


def seccomp_filter() -> Seen:
    become_ordinary()
    program = seccomp.build_filter()
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()
    libc.forbid_new_privileges()
    seccomp.load(program)
    refusal = refusal_of(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
    expect(refusal == errno.EPERM, "a call that the filter forbids was let through")
    return Seen("a netlink socket, possible before, is refused under the filter")


def landlock_rules() -> Seen:
    become_ordinary()
    version = landlock.abi_version()
    if version == 0:
        raise OSError(errno.ENOSYS, "there is no Landlock here")
    if version < _SAFE_LANDLOCK:
        raise AbsentError(f"version {version}, and {_SAFE_LANDLOCK} is needed")
    os.close(os.open("/etc", os.O_RDONLY | os.O_DIRECTORY))
    libc.forbid_new_privileges()
    landlock.restrict(read_only=["/usr"], read_write=[])
    os.close(os.open("/usr", os.O_RDONLY | os.O_DIRECTORY))
    refusal = refusal_of(lambda: os.open("/etc", os.O_RDONLY | os.O_DIRECTORY))
    expect(refusal == errno.EACCES, "a folder outside the rules can still be opened")
    return Seen(f"version {version}; a folder outside the rules is refused", version)


def pidfd() -> Seen:
    pid = os.fork()
    if pid == 0:
        libc.die_with_parent(signal.SIGKILL)
        signal.pause()
        os._exit(0)
    descriptor = os.pidfd_open(pid)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    status = await_child(pid, descriptor)
    expect(os.WIFSIGNALED(status), "the process was not killed")
    return Seen("a process is killed and waited for by descriptor")


def openat2() -> Seen:
    top = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.close(libc.open_beneath(top, b".", os.O_PATH))
    refusal = refusal_of(lambda: libc.open_beneath(top, b"..", os.O_PATH))
    expect(refusal == errno.EXDEV, "a path may leave its folder")
    return Seen("a path cannot leave its folder")


def control_groups() -> Seen:
    with _groups() as groups:
        version = 2 if os.path.exists(f"{groups.folders[0]}/cgroup.controllers") else 1
        return Seen(f"version {version}, below {os.path.dirname(groups.folders[0])}", version)


def group_limits() -> Seen:
    with _groups() as groups:
        group = groups.open_group("use")
        group.apply(memory_bytes=_GROUP_BYTES, processes=1)
        entries = group.open_entries()
        pid = os.fork()
        if pid == 0:
            _take_too_much(entries)
        status = await_child(pid, os.pidfd_open(pid))
        used = group.usage()
    expect(used.refused_forks > 0, "the limit on processes is not kept")
    expect(
        os.WIFSIGNALED(status) and used.oom_kills > 0,
        f"a process took more than its {_GROUP_BYTES >> 20} MB and lived",
    )
    return Seen("one process too many was refused, one that took too much memory was killed")


@contextmanager
def _groups() -> Generator[ControlGroups]:
    name = f"{os.getpid()}-doctor"
    with _removed_in_the_end(name):
        groups = open_groups(name)
        if not groups.enforcing:
            raise AbsentError("none can be made")
        yield groups


@contextmanager
def _removed_in_the_end(name: str) -> Generator[None]:
    """Have another process remove the groups, because this one may be killed at any moment."""
    watched, held = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        # Signals to the doctor's session do not reach it, and no reader of our output waits for it.
        os.setsid()
        os.closerange(0, 3)
        os.close(held)
        os.read(watched, 1)
        launcher.remove_all(folders_of(name))
        os._exit(0)
    os.close(watched)
    try:
        yield
    finally:
        os.close(held)
        os.waitpid(pid, 0)


def _take_too_much(entries: list[int]) -> NoReturn:
    libc.die_with_parent(signal.SIGKILL)
    for entry in entries:
        os.write(entry, b"0")
    if refusal_of(_fork_once) == errno.EAGAIN:
        ctypes.memset(ctypes.create_string_buffer(2 * _GROUP_BYTES), 1, 2 * _GROUP_BYTES)
    os._exit(0)


def _fork_once() -> None:
    if os.fork() == 0:
        os._exit(0)


ACTS: Final[MappingProxyType[str, Act]] = MappingProxyType(
    {
        "unprivileged identity": identity,
        "seccomp": seccomp_filter,
        "pidfd": pidfd,
        "openat2": openat2,
        "namespaces of root": namespaces_of_root,
        "user namespace": user_namespace,
        "uid map": uid_map,
        "nested user namespace": nested_user_namespace,
        "net namespace": partial(own_namespace, "net", libc.CLONE_NEWNET),
        "ipc namespace": partial(own_namespace, "ipc", libc.CLONE_NEWIPC),
        "uts namespace": partial(own_namespace, "uts", libc.CLONE_NEWUTS),
        "cgroup namespace": partial(own_namespace, "cgroup", libc.CLONE_NEWCGROUP),
        "tmpfs": tmpfs,
        "read-only mounts": read_only_mounts,
        "proc": proc,
        "pivot root": pivot_root,
        "landlock": landlock_rules,
        "interpreter for landlock": reach_interpreter,
        "control groups": control_groups,
        "group limits": group_limits,
    }
)
"""By the name of the probe, see `probes.py`."""
