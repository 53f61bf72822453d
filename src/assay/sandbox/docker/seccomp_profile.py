"""The seccomp profile of a container: what programs in it may call, and what our engine needs more.

Programs have a filter of their own inside, narrower than this one. This is the wall behind it: it
must let the engine make namespaces and mounts, and nobody reach what no one in here needs.
"""

import platform
from typing import Any, Final

from assay.sandbox.native.seccomp_policy import build_policy

_ENGINE: Final = """
    clone clone3 unshare setns mount umount2 pivot_root mount_setattr sethostname chroot openat2
    chmod fchmod fchmodat fchmodat2 mknod mknodat open openat creat ioctl prctl personality
    socketpair
    """
"""What makes and keeps a jail. Rights still decide: outside of a namespace of its own the engine
has none, and a program in one is filtered again."""
_FAMILIES: Final = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6: not netlink, packet, vsock, bluetooth, …"""
_PERSONALITIES: Final = (0, 0x0008, 0x20000, 0x20008, 0x0040000, 0xFFFFFFFF)
_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_ENOSYS: Final = 38
_EPERM: Final = 1


def build_profile(machine: str = platform.machine()) -> dict[str, Any]:
    """Return the profile as Docker reads it."""
    policy = build_policy(network=True)
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
            *(_when("socket", 0, family) for family in _FAMILIES),
            *(_when("personality", 0, value) for value in _PERSONALITIES),
        ],
    }


def _when(name: str, argument: int, value: int) -> dict[str, Any]:
    condition = {"index": argument, "value": value, "op": "SCMP_CMP_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [condition]}
