"""Explains why a probe failed and how to fix it; pure functions of the collected facts."""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from assay.sandbox.native.doctor.host_info import Machine

Status = Literal["ok", "missing", "failed", "timed_out", "info"]

_USER_LIMIT: Final = "user.max_user_namespaces"
_FORBIDDEN: Final = frozenset({errno.EPERM, errno.EACCES})
_USED_UP: Final = frozenset({errno.ENOSPC, errno.EUSERS})
_DOCKER_FLAGS: Final = "--security-opt seccomp=unconfined --security-opt systempaths=unconfined"
_OPEN_CONTAINER: Final = MappingProxyType(
    {
        "docker": f"docker run {_DOCKER_FLAGS} ...",
        "podman": "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL ...",
        "kubernetes": (
            "in the pod's securityContext: seccompProfile.type: Unconfined, procMount: Unmasked"
        ),
    }
)
_CONTAINER_LIMITS: Final = MappingProxyType(
    {
        "docker": "limit all sandboxes together: docker run --memory=4g --pids-limit=1000 ...",
        "podman": "limit all sandboxes together: podman run --memory=4g --pids-limit=1000 ...",
        "kubernetes": "limit all sandboxes together: resources.limits of the pod",
    }
)
_SINCE: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"read-only mounts": (5, 12), "openat2": (5, 6), "pidfd": (5, 4), "landlock": (6, 12)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check of this machine."""

    name: str
    status: Status
    detail: str
    cause: str = ""
    fix: str = ""
    """What the user can do; empty if nothing needs a fix or no simple fix exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A failed probe and the machine that it ran on."""

    name: str
    message: str
    errno: int
    """0 if no system call failed: it had no effect, or there was nothing to call."""
    machine: Machine

    @property
    def forbidden(self) -> bool:
        return self.errno in _FORBIDDEN

    @property
    def lacking(self) -> bool:
        return self.errno == errno.ENOSYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The cause, and one line that fixes it; without that line if no simple fix exists."""

    cause: str
    fix: str = ""


Suspect = Callable[[Case], Explanation | None]
"""Returns the explanation if this is the cause, else None."""


def explain(case: Case) -> Explanation:
    """Return the explanation of the first suspect of a probe that matches."""
    for suspect in (*_SUSPECTS.get(case.name, _OF_NAMESPACES), _outer_sandbox):
        explanation = suspect(case)
        if explanation is not None:
            return explanation
    symbol = errno.errorcode.get(case.errno, "")
    said = f"the kernel said {symbol}" if symbol else "it took no effect"
    return Explanation(
        cause=f"{said}, and nothing we know of this machine explains it",
        fix="please report it, with the output of `assay doctor --json`",
    )


def _limit(case: Case) -> Explanation | None:
    if case.errno not in _USED_UP:
        return None
    closed = [limit for limit, value in case.machine.namespace_limits.items() if value == 0]
    wanted = f"user.max_{case.name.partition(' ')[0]}_namespaces"
    for limit in (_USER_LIMIT, wanted, *closed):
        if limit in closed:
            return Explanation(cause=f"{limit} is 0", fix=f"sudo sysctl -w {limit}=15000")
    return Explanation(
        cause="this user, or a namespace around us, has as many namespaces as allowed",
        fix=f"end some, or raise the limit: sudo sysctl -w {_USER_LIMIT}=65536",
    )


def _not_compiled_in(case: Case) -> Explanation | None:
    if case.errno != errno.EINVAL:
        return None
    kind = case.name.partition(" ")[0]
    return Explanation(
        cause=f"this kernel was built without {kind} namespaces",
        fix=f"use a kernel with CONFIG_{kind.upper()}_NS=y",
    )


def _userns_clone(case: Case) -> Explanation | None:
    if not case.forbidden or case.machine.userns_clone != 0:
        return None
    return Explanation(
        cause="kernel.unprivileged_userns_clone is 0",
        fix="sudo sysctl -w kernel.unprivileged_userns_clone=1",
    )


def _apparmor_restriction(case: Case) -> Explanation | None:
    if not case.forbidden or not case.machine.apparmor_restricts:
        return None
    return Explanation(
        cause="kernel.apparmor_restrict_unprivileged_userns is 1, as on Ubuntu 24.04",
        fix="sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, "
        "or an AppArmor profile for this Python that allows `userns`",
    )


def _apparmor_profile(case: Case) -> Explanation | None:
    if not case.forbidden or not case.machine.apparmor_profile:
        return None
    fix = (
        f"{case.machine.container} run --security-opt apparmor=unconfined {_DOCKER_FLAGS} ..."
        if case.machine.container == "docker"
        else "start Assay outside that profile, or allow `mount` and `userns` in it"
    )
    return Explanation(
        cause=f"the AppArmor profile {case.machine.apparmor_profile!r} confines this process",
        fix=fix,
    )


def _chroot(case: Case) -> Explanation | None:
    if not case.forbidden or not case.machine.chrooted:
        return None
    return Explanation(
        cause="we are in a chroot, where the kernel makes no user namespaces",
        fix="enter it with `unshare --mount` and `pivot_root` instead, or run Assay outside",
    )


def _outer_sandbox(case: Case) -> Explanation | None:
    """Explain a filter or policy that applies to this process from outside."""
    if not case.forbidden and not case.lacking:
        return None
    if case.machine.container:
        filtered = "its seccomp profile" if case.machine.seccomp_filtered else "its privileges"
        return Explanation(
            cause=f"we are inside a container ({case.machine.container}); {filtered} forbids this",
            fix=_OPEN_CONTAINER.get(
                case.machine.container, "start the container without a seccomp profile"
            ),
        )
    if case.machine.seccomp_filtered:
        return Explanation(
            cause="a seccomp filter of the program that started us forbids this",
            fix="start Assay outside that sandbox, or from a login shell",
        )
    if case.forbidden and case.machine.selinux_enforcing:
        return Explanation(
            cause="SELinux is enforcing and may forbid this",
            fix="look with `sudo ausearch -m avc -ts recent`; allow it with `audit2allow`",
        )
    return None


def _covered_proc(case: Case) -> Explanation | None:
    if not case.forbidden or not case.machine.covered_proc:
        return None
    some = ", ".join(case.machine.covered_proc[:3])
    return Explanation(
        cause=f"parts of /proc are covered here ({some}), so the kernel shows no fresh one",
        fix=_OPEN_CONTAINER.get(case.machine.container, "unmount what covers them"),
    )


def _initial_ramfs(case: Case) -> Explanation | None:
    if case.errno != errno.EINVAL or case.machine.root_kind not in {"rootfs", "ramfs"}:
        return None
    return Explanation(
        cause="the root directory is the initial ramfs, which cannot be left by pivot_root",
        fix="boot into a root file system of its own (switch_root)",
    )


def _old_kernel(case: Case) -> Explanation | None:
    since, version = _SINCE.get(case.name), case.machine.version
    if case.forbidden or since is None or version is None or version >= since:
        return None
    needed = ".".join(map(str, since))
    return Explanation(
        cause=f"Linux {case.machine.release} is too old for this",
        fix=f"use Linux {needed} or newer",
    )


def _landlock_off(case: Case) -> Explanation | None:
    modules = tuple(module for module in case.machine.security_modules if module)
    if not case.lacking or not modules or "landlock" in modules:
        return None
    return Explanation(
        cause=f"Landlock is not among the active security modules ({', '.join(modules)})",
        fix=f"add it on the kernel's command line: lsm=landlock,{','.join(modules)}",
    )


def _no_landlock(case: Case) -> Explanation | None:
    if not case.lacking or case.machine.container or case.machine.seccomp_filtered:
        return None
    return Explanation(
        cause="this kernel was built without Landlock",
        fix="use a kernel with CONFIG_SECURITY_LANDLOCK=y",
    )


def _no_filters(case: Case) -> Explanation | None:
    if case.errno != errno.EINVAL:
        return None
    return Explanation(
        cause="this kernel was built without seccomp filters",
        fix="use a kernel with CONFIG_SECCOMP_FILTER=y",
    )


def _few_ids(case: Case) -> Explanation | None:
    if not case.machine.in_user_namespace:
        return None
    return Explanation(
        cause=f"this root has a user namespace of {case.machine.mapped_ids} uid(s) "
        "and none to give to a sandbox",
        fix="run Assay as an ordinary user",
    )


def _weak_root(case: Case) -> Explanation | None:
    if not case.forbidden:
        return None
    within = f" of this container ({case.machine.container})" if case.machine.container else ""
    return Explanation(
        cause=f"the root{within} lacks capabilities that a real one has",
        fix="run Assay as an ordinary user, who needs none",
    )


def _hidden_interpreter(case: Case) -> Explanation | None:
    if not case.forbidden:
        return None
    return Explanation(
        cause="without namespaces, programs use this interpreter where it lies",
        fix="use a Python that everyone may run, such as /usr/bin/python3",
    )


def _groups(case: Case) -> Explanation | None:
    facts, wanted = case.machine.groups, {"memory", "pids"}
    if not facts.version_1 and not facts.version_2:
        return Explanation(
            cause="no control groups are mounted here",
            fix=_CONTAINER_LIMITS.get(case.machine.container, ""),
        )
    if not (wanted <= facts.version_1 or wanted <= facts.version_2_controllers):
        return Explanation(
            cause="the memory and pids controllers are not both available here",
            fix="boot with cgroup_enable=memory",
        )
    if facts.read_only:
        return Explanation(
            cause="the control groups are mounted read-only, as containers have them",
            fix=_CONTAINER_LIMITS.get(case.machine.container, "mount /sys/fs/cgroup writable"),
        )
    if case.machine.uid != 0:
        fix = "run Assay as root, which keeps no right in a sandbox, or in groups this user owns"
        if wanted <= facts.version_2_controllers:
            fix = (
                "start Assay in a group that systemd delegates to this user: "
                "systemd-run --user --scope assay ..."
            )
        return Explanation(cause="an ordinary user may not make control groups here", fix=fix)
    return None


def _uncounted(case: Case) -> Explanation | None:
    if case.errno:
        return None
    return Explanation(
        cause="swap is not counted here, or the controller is switched off",
        fix="boot with swapaccount=1 cgroup_enable=memory, or without swap",
    )


_OF_NAMESPACES: Final[tuple[Suspect, ...]] = (
    _limit,
    _userns_clone,
    _apparmor_restriction,
    _chroot,
    _apparmor_profile,
)
_SUSPECTS: Final[Mapping[str, tuple[Suspect, ...]]] = MappingProxyType(
    {
        "unprivileged identity": (_few_ids, _weak_root),
        "namespaces of root": (_limit, _weak_root),
        "interpreter for landlock": (_hidden_interpreter,),
        "user namespace": (*_OF_NAMESPACES, _not_compiled_in),
        "net namespace": (*_OF_NAMESPACES, _not_compiled_in),
        "ipc namespace": (*_OF_NAMESPACES, _not_compiled_in),
        "uts namespace": (*_OF_NAMESPACES, _not_compiled_in),
        "cgroup namespace": (*_OF_NAMESPACES, _not_compiled_in),
        "read-only mounts": (_old_kernel, *_OF_NAMESPACES),
        "proc": (_covered_proc, *_OF_NAMESPACES),
        "pivot root": (_initial_ramfs, *_OF_NAMESPACES),
        "seccomp": (_no_filters,),
        "landlock": (_old_kernel, _landlock_off, _no_landlock),
        "pidfd": (_old_kernel,),
        "openat2": (_old_kernel,),
        "control groups": (_groups,),
        "group limits": (_uncounted,),
    }
)
