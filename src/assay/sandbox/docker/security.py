"""Security of a container: its seccomp profile, and the options of the Docker API from limits.

Programs run under a narrower filter inside. The profile is the second layer of defense: it allows
the engine to create namespaces and mounts, and blocks every call that no process inside needs.
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from assay.contracts.execution import WORKSPACE, Limits
from assay.sandbox.docker.labels import owner_labels
from assay.sandbox.native.kernel.seccomp_policy import build_policy

_ENGINE: Final = """
    clone clone3 unshare setns mount umount2 pivot_root mount_setattr sethostname chroot openat2
    open_tree move_mount
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


GVISOR: Final = "runsc"
USER_ID: Final = 65532
"""A uid without an account, different from the common `nobody`."""
RUNTIME: Final = "/run/assay"
LAYERS: Final = "/run/assay-layers"
LAYERS_MB: Final = 2048
"""The size of the layers in a container. What they use counts toward its memory."""

_MEGABYTE: Final = 1 << 20
_ENGINE_MB: Final = 640
"""For the service processes and their loaded libraries."""
_ENGINE_PROCESSES: Final = 160
_AT_ONCE: Final = 4
"""The number of executions that may use their full limits at the same time."""
_MEMORY_STEP_MB: Final = 1024
_PROCESSES_STEP: Final = 256
_RUNTIME_MB: Final = 16
_OPEN_FILES: Final = 8192
_GVISOR_THREADS: Final = 4096
"""gVisor exits if the host refuses it a thread, and uses some for each process of a program."""
_GVISOR_CAPABILITIES: Final = ("SETUID", "SETGID")
"""In gVisor, these apply to gVisor's kernel and not to the host's. The service is root there,
without any other capability, so that programs can run as a different user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceCaps:
    """The limits of a whole container: an outer layer around the limits inside."""

    memory_mb: int
    processes: int
    disk_mb: int
    """0 if the engine inside mounts the file system of its sandbox."""


def caps_for(limits: Limits, *, files: bool = True, layer_mb: int = 0) -> ResourceCaps:
    """Return caps wide enough that programs meet the limits inside first.

    The caps are rounded, so that a warm container fits sandboxes of many sizes. `files`: whether
    the container provides the sandbox's file system. `layer_mb`: the size of the sandbox's layer,
    of which the container may hold a copy.
    """
    memory_mb = _ENGINE_MB + limits.disk_mb + _AT_ONCE * limits.memory_mb + 2 * layer_mb
    return ResourceCaps(
        memory_mb=_round_up(memory_mb, _MEMORY_STEP_MB),
        processes=_round_up(_ENGINE_PROCESSES + _AT_ONCE * limits.processes, _PROCESSES_STEP),
        disk_mb=limits.disk_mb + layer_mb if files else 0,
    )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """All inputs of one container's configuration."""

    image: str
    argv: tuple[str, ...]
    caps: ResourceCaps
    cpus: float
    runtime: str = ""
    """Empty: the Docker engine's default."""
    hosts: bool = False
    """Whether programs may reach hosts, through a proxy inside and not directly."""

    @property
    def gvisor(self) -> bool:
        return self.runtime == GVISOR


def container_config(plan: ContainerPlan) -> dict[str, Any]:
    """Return the configuration of a container for the Docker API."""
    return {
        "Image": plan.image,
        "Entrypoint": [],
        "Cmd": list(plan.argv),
        "User": "0:0" if plan.gvisor else f"{USER_ID}:{USER_ID}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [],
        "Labels": owner_labels(),
        # On gVisor programs see the container's own /etc/hosts, which stays empty with this
        # setting.
        "NetworkDisabled": not plan.gvisor,
        "OpenStdin": True,
        "StdinOnce": True,  # stdin ends when the attached client disconnects
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(plan),
    }


def _host_config(plan: ContainerPlan) -> dict[str, Any]:
    caps = plan.caps
    memory_bytes = caps.memory_mb * _MEGABYTE
    return {
        "AutoRemove": True,
        "Runtime": plan.runtime,
        "NetworkMode": "none",
        "IpcMode": "none",  # so there is no unlimited /dev/shm
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": list(_GVISOR_CAPABILITIES) if plan.gvisor else [],
        "SecurityOpt": [
            "no-new-privileges:true",
            f"seccomp={json.dumps(build_profile(routes=plan.hosts))}",
        ],
        # The engine inside mounts a separate /proc for each execution. The kernel allows this only
        # to processes that see the whole /proc. The container runs without root, which protects it.
        "MaskedPaths": [],
        "ReadonlyPaths": [],
        "Init": True,
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,
        "PidsLimit": caps.processes + (_GVISOR_THREADS if plan.gvisor else 0),
        "NanoCpus": int(plan.cpus * 1e9),
        "OomScoreAdj": 500,
        "Ulimits": [
            {"Name": "nofile", "Soft": _OPEN_FILES, "Hard": _OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "Tmpfs": _gvisor_tmpfs(caps) if plan.gvisor else _tmpfs(),
        "LogConfig": {"Type": "none"},
    }


def _tmpfs() -> dict[str, str]:
    """Return mounts for an engine that mounts the files of its sandbox itself."""
    return {
        RUNTIME: _mount(_RUNTIME_MB, USER_ID),
        LAYERS: _mount(LAYERS_MB, USER_ID),
        "/tmp": _mount(_RUNTIME_MB, USER_ID),
    }


def _gvisor_tmpfs(caps: ResourceCaps) -> dict[str, str]:
    """Return mounts for an engine that cannot mount: the files of its sandbox are here."""
    files = _mount(caps.disk_mb, USER_ID, mode="0755")
    temporary = dict.fromkeys(("/tmp", "/dev/shm"), files)
    layers = _mount(LAYERS_MB, 0)
    return {RUNTIME: _mount(_RUNTIME_MB, 0), LAYERS: layers, str(WORKSPACE): files, **temporary}


def _mount(size_mb: int, owner: int, mode: str = "0700") -> str:
    return f"rw,exec,nosuid,nodev,mode={mode},uid={owner},gid={owner},size={size_mb}m"


def question_config(image: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of a container that runs one query on an image and exits."""
    caps = ResourceCaps(memory_mb=256, processes=32, disk_mb=1)
    plan = ContainerPlan(image=image, argv=tuple(argv), caps=caps, cpus=1.0)
    return container_config(plan)
