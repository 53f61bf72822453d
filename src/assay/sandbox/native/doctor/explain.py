"""Explains why a probe failed and how to fix it; pure functions of the collected facts."""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from assay.sandbox.native.doctor.host_info import Machine

Status = Literal["ok", "missing", "failed", "timed_out", "info"]

_USER_LIMIT: Final = "user.max_user_namespaces"
_MAKES_ONE_KIND: Final = ("user", "net", "ipc", "uts", "cgroup")
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


Cause = tuple[bool, str, str]
"""Whether it applies, what it is, and one line that fixes it; empty if no simple fix exists."""


def explain(name: str, code: int, machine: Machine) -> tuple[str, str]:
    """Return cause and fix of a failed probe: those of the first cause that applies.

    The code is 0 if no system call failed: it had no effect, or there was nothing to call.
    """
    forbidden, lacking = code in {errno.EPERM, errno.EACCES}, code == errno.ENOSYS
    kind, _, rest = name.partition(" ")
    match name:
        case "unprivileged identity":
            causes = [_few_ids(machine), _weak_root(machine, forbidden=forbidden)]
        case "namespaces of root":
            causes = [*_limits(name, code, machine), _weak_root(machine, forbidden=forbidden)]
        case "interpreter for landlock":
            where = "without namespaces, programs use this interpreter where it lies"
            causes = [
                (forbidden, where, "use a Python that everyone may run, such as /usr/bin/python3")
            ]
        case "seccomp":
            causes = [_not_built(code, "seccomp filters", "CONFIG_SECCOMP_FILTER=y")]
        case "landlock":
            causes = [_old_kernel(name, machine, forbidden=forbidden), *_landlock(machine, code)]
        case "pidfd" | "openat2":
            causes = [_old_kernel(name, machine, forbidden=forbidden)]
        case "control groups":
            causes = _control_groups(machine)
        case "group limits":
            swap = "boot with swapaccount=1 cgroup_enable=memory, or without swap"
            causes = [
                (not code, "swap is not counted here, or the controller is switched off", swap)
            ]
        case _:
            causes = [
                _old_kernel(name, machine, forbidden=forbidden),
                *_mounting(name, code, machine, forbidden=forbidden),
                *_limits(name, code, machine),
                *_namespaces(machine, forbidden=forbidden),
            ]
            if rest == "namespace" and kind in _MAKES_ONE_KIND:
                wanted = f"CONFIG_{kind.upper()}_NS=y"
                causes.append(_not_built(code, f"{kind} namespaces", wanted))
    causes += _outer_sandbox(machine, forbidden=forbidden, lacking=lacking)
    symbol = errno.errorcode.get(code, "")
    said = f"the kernel said {symbol}" if symbol else "it took no effect"
    unknown = f"{said}, and nothing we know of this machine explains it"
    found = (cause[1:] for cause in causes if cause[0])
    return next(found, (unknown, "please report it, with the output of `assay doctor --json`"))


def _limits(name: str, code: int, machine: Machine) -> list[Cause]:
    used_up = code in {errno.ENOSPC, errno.EUSERS}
    closed = [limit for limit, value in machine.namespace_limits.items() if value == 0]
    wanted = f"user.max_{name.partition(' ')[0]}_namespaces"
    return [
        *(
            (used_up and limit in closed, f"{limit} is 0", f"sudo sysctl -w {limit}=15000")
            for limit in (_USER_LIMIT, wanted, *closed)
        ),
        (
            used_up,
            "this user, or a namespace around us, has as many namespaces as allowed",
            f"end some, or raise the limit: sudo sysctl -w {_USER_LIMIT}=65536",
        ),
    ]


def _namespaces(machine: Machine, *, forbidden: bool) -> list[Cause]:
    apparmor = "start Assay outside that profile, or allow `mount` and `userns` in it"
    if machine.container == "docker":
        apparmor = f"docker run --security-opt apparmor=unconfined {_DOCKER_FLAGS} ..."
    return [
        (
            forbidden and machine.userns_clone == 0,
            "kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            forbidden and machine.apparmor_restricts,
            "kernel.apparmor_restrict_unprivileged_userns is 1, as on Ubuntu 24.04",
            (
                "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, "
                "or an AppArmor profile for this Python that allows `userns`"
            ),
        ),
        (
            forbidden and machine.chrooted,
            "we are in a chroot, where the kernel makes no user namespaces",
            "enter it with `unshare --mount` and `pivot_root` instead, or run Assay outside",
        ),
        (
            forbidden and bool(machine.apparmor_profile),
            f"the AppArmor profile {machine.apparmor_profile!r} confines this process",
            apparmor,
        ),
    ]


def _mounting(name: str, code: int, machine: Machine, *, forbidden: bool) -> list[Cause]:
    some = ", ".join(machine.covered_proc[:3])
    return [
        (
            name == "proc" and forbidden and bool(machine.covered_proc),
            f"parts of /proc are covered here ({some}), so the kernel shows no fresh one",
            _OPEN_CONTAINER.get(machine.container, "unmount what covers them"),
        ),
        (
            name == "pivot root"
            and code == errno.EINVAL
            and machine.root_kind in {"rootfs", "ramfs"},
            "the root directory is the initial ramfs, which cannot be left by pivot_root",
            "boot into a root file system of its own (switch_root)",
        ),
    ]


def _outer_sandbox(machine: Machine, *, forbidden: bool, lacking: bool) -> list[Cause]:
    """Return what a filter or policy that applies to this process from outside may cause."""
    filtered = "its seccomp profile" if machine.seccomp_filtered else "its privileges"
    return [
        (
            (forbidden or lacking) and bool(machine.container),
            f"we are inside a container ({machine.container}); {filtered} forbids this",
            _OPEN_CONTAINER.get(machine.container, "start the container without a seccomp profile"),
        ),
        (
            (forbidden or lacking) and machine.seccomp_filtered,
            "a seccomp filter of the program that started us forbids this",
            "start Assay outside that sandbox, or from a login shell",
        ),
        (
            forbidden and machine.selinux_enforcing,
            "SELinux is enforcing and may forbid this",
            "look with `sudo ausearch -m avc -ts recent`; allow it with `audit2allow`",
        ),
    ]


def _old_kernel(name: str, machine: Machine, *, forbidden: bool) -> Cause:
    since, version = _SINCE.get(name, (0, 0)), machine.version
    return (
        not forbidden and version is not None and version < since,
        f"Linux {machine.release} is too old for this",
        f"use Linux {'.'.join(map(str, since))} or newer",
    )


def _not_built(code: int, what: str, option: str) -> Cause:
    built = f"this kernel was built without {what}"
    return code == errno.EINVAL, built, f"use a kernel with {option}"


def _landlock(machine: Machine, code: int) -> Sequence[Cause]:
    lacking = code == errno.ENOSYS
    modules = [module for module in machine.security_modules if module]
    return (
        (
            lacking and bool(modules) and "landlock" not in modules,
            f"Landlock is not among the active security modules ({', '.join(modules)})",
            f"add it on the kernel's command line: lsm=landlock,{','.join(modules)}",
        ),
        (
            lacking and not machine.container and not machine.seccomp_filtered,
            "this kernel was built without Landlock",
            "use a kernel with CONFIG_SECURITY_LANDLOCK=y",
        ),
    )


def _few_ids(machine: Machine) -> Cause:
    ids = f"this root has a user namespace of {machine.mapped_ids} uid(s)"
    cause = f"{ids} and none to give to a sandbox"
    return machine.in_user_namespace, cause, "run Assay as an ordinary user"


def _weak_root(machine: Machine, *, forbidden: bool) -> Cause:
    within = f" of this container ({machine.container})" if machine.container else ""
    return (
        forbidden,
        f"the root{within} lacks capabilities that a real one has",
        "run Assay as an ordinary user, who needs none",
    )


def _control_groups(machine: Machine) -> list[Cause]:
    facts, wanted = machine.groups, {"memory", "pids"}
    limits = _CONTAINER_LIMITS.get(machine.container)
    ordinary = "run Assay as root, which keeps no right in a sandbox, or in groups this user owns"
    if wanted <= facts.version_2_controllers:
        ordinary = (
            "start Assay in a group that systemd delegates to this user: "
            "systemd-run --user --scope assay ..."
        )
    return [
        (
            not facts.version_1 and not facts.version_2,
            "no control groups are mounted here",
            limits or "",
        ),
        (
            not (wanted <= facts.version_1 or wanted <= facts.version_2_controllers),
            "the memory and pids controllers are not both available here",
            "boot with cgroup_enable=memory",
        ),
        (
            facts.read_only,
            "the control groups are mounted read-only, as containers have them",
            limits or "mount /sys/fs/cgroup writable",
        ),
        (machine.uid != 0, "an ordinary user may not make control groups here", ordinary),
    ]
