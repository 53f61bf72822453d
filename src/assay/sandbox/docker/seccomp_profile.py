"""Seccomp profile of a container: the calls of programs, and those that the native engine needs.

Programs run under a narrower filter inside. This profile is the second layer of defense: it allows
the engine to create namespaces and mounts, and blocks every call that no process inside needs.
"""

import platform
from typing import Any, Final

from assay.sandbox.native.kernel.seccomp_policy import build_policy

_ENGINE: Final = """
    clone clone3 unshare setns mount umount2 pivot_root mount_setattr sethostname chroot openat2
    chmod fchmod fchmodat fchmodat2 mknod mknodat open openat creat ioctl fcntl prctl personality
    socketpair setsockopt
    """
"""The calls that create a jail. Capabilities still apply: outside of its own namespaces the engine
has none, and a program inside one is filtered again."""
_FAMILIES: Final = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6; no netlink, packet, vsock, bluetooth, …"""
_NETLINK: Final = 16
_NETLINK_ROUTE: Final = 0
"""The engine makes every address local in a program's network, which needs a route; packet
filters, audit and all other netlink families stay blocked."""
_PERSONALITIES: Final = (0, 0x0008, 0x20000, 0x20008, 0x0040000, 0xFFFFFFFF)
_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_ENOSYS: Final = 38
_EPERM: Final = 1


def build_profile(machine: str = platform.machine(), *, routes: bool = False) -> dict[str, Any]:
    """Return the profile in Docker's format; with `routes`, the engine inside may set routes."""
    policy = build_policy()
    hidden = policy.hidden - set(_ENGINE.split())
    engine = set(_ENGINE.split()) - {"personality"}
    allowed = sorted((policy.allowed | engine) - hidden)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _EPERM,
        "architectures": [_ARCHITECTURES.get(machine, f"SCMP_ARCH_{machine.upper()}")],
        "syscalls": [
            {"names": allowed, "action": "SCMP_ACT_ALLOW"},
            {
                "names": sorted(hidden),
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": _ENOSYS,
            },
            *(_when("socket", (0, family)) for family in _FAMILIES),
            *([_when("socket", (0, _NETLINK), (2, _NETLINK_ROUTE))] if routes else ()),
            *(_when("personality", (0, value)) for value in _PERSONALITIES),
        ],
    }


def _when(name: str, *conditions: tuple[int, int]) -> dict[str, Any]:
    arguments = [
        {"index": index, "value": value, "op": "SCMP_CMP_EQ"} for index, value in conditions
    ]
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments}
