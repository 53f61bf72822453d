"""What a container is allowed: next to nothing. From limits to the engine's own words."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from assay.contracts.execution import WORKSPACE, Limits
from assay.sandbox.docker.labels import owner_labels
from assay.sandbox.docker.seccomp_profile import build_profile

USER_ID: Final = 65532
"""Nobody on any system, and not the `nobody` that others use too."""
RUNTIME: Final = "/run/assay"

_MEGABYTE: Final = 1 << 20
_ENGINE_MB: Final = 640
"""For our own processes and the libraries they have loaded."""
_ENGINE_PROCESSES: Final = 160
_AT_ONCE: Final = 4
"""So many executions may use all they are allowed at the same time."""
_MEMORY_STEP_MB: Final = 1024
_PROCESSES_STEP: Final = 256
_RUNTIME_MB: Final = 16
_OPEN_FILES: Final = 8192
_GVISOR_THREADS: Final = 4096
"""gVisor dies when the host refuses it a thread, and has some for each process of a program."""
_GVISOR_CAPABILITIES: Final = ("SETUID", "SETGID")
"""In gVisor, whose kernel this is about and not the host's: our service is its root, without any
other right, so that programs can be somebody else than the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceCaps:
    """What a whole container may use: an outer wall, around the limits kept inside."""

    memory_mb: int
    processes: int
    disk_mb: int
    """0 where the engine inside makes the file system of its sandbox."""


def walls_around(limits: Limits, *, files: bool = True) -> ResourceCaps:
    """Draw them so wide that the limits inside are what programs meet.

    In round numbers, so that a container that waits ready suits sandboxes of many sizes. `files`:
    whether those of the sandbox are in a file system that comes with the container.
    """
    memory_mb = _ENGINE_MB + limits.disk_mb + _AT_ONCE * limits.memory_mb
    return ResourceCaps(
        memory_mb=_round_up(memory_mb, _MEMORY_STEP_MB),
        processes=_round_up(_ENGINE_PROCESSES + _AT_ONCE * limits.processes, _PROCESSES_STEP),
        disk_mb=limits.disk_mb if files else 0,
    )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """Everything that one container is made from."""

    image: str
    argv: tuple[str, ...]
    walls: ResourceCaps
    cpus: float
    runtime: str
    """Empty: the engine's own default."""
    gvisor: bool = False
    hosts: bool = False
    """Whether programs may reach some hosts: not from here, but through a gate inside."""


def container_config(plan: ContainerPlan) -> dict[str, Any]:
    """Describe a container in the words of the engine's interface."""
    return {
        "Image": plan.image,
        "Entrypoint": [],
        "Cmd": list(plan.argv),
        "User": "0:0" if plan.gvisor else f"{USER_ID}:{USER_ID}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [],
        "Labels": owner_labels(),
        # On gVisor programs see the container's own /etc/hosts, which is left empty with this set.
        "NetworkDisabled": not plan.gvisor,
        "OpenStdin": True,
        "StdinOnce": True,  # when whoever attached goes, in whatever way, stdin ends
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(plan),
    }


def _host_config(plan: ContainerPlan) -> dict[str, Any]:
    walls = plan.walls
    memory_bytes = walls.memory_mb * _MEGABYTE
    return {
        "AutoRemove": True,
        "Runtime": plan.runtime,
        "NetworkMode": "none",
        "IpcMode": "none",  # and so no /dev/shm that nobody would count
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": list(_GVISOR_CAPABILITIES) if plan.gvisor else [],
        "SecurityOpt": [
            "no-new-privileges:true",
            f"seccomp={json.dumps(build_profile(routes=plan.hosts))}",
        ],
        # The engine inside mounts a /proc of its own for each execution, which the kernel allows
        # only to those who see all of theirs. Nobody in here is root, which is what guards it.
        "MaskedPaths": [],
        "ReadonlyPaths": [],
        "Init": True,
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,
        "PidsLimit": walls.processes + (_GVISOR_THREADS if plan.gvisor else 0),
        "NanoCpus": int(plan.cpus * 1e9),
        "OomScoreAdj": 500,
        "Ulimits": [
            {"Name": "nofile", "Soft": _OPEN_FILES, "Hard": _OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "Tmpfs": _gvisor_tmpfs(walls) if plan.gvisor else _tmpfs(),
        "LogConfig": {"Type": "none"},
    }


def _tmpfs() -> dict[str, str]:
    """The engine inside mounts the files of its sandbox itself."""
    return {RUNTIME: _mount(_RUNTIME_MB, USER_ID), "/tmp": _mount(_RUNTIME_MB, USER_ID)}  # noqa: S108


def _gvisor_tmpfs(walls: ResourceCaps) -> dict[str, str]:
    """The engine inside cannot mount: the files of its sandbox are here."""
    files = _mount(walls.disk_mb, USER_ID, mode="0755")
    temporary = dict.fromkeys(("/tmp", "/dev/shm"), files)  # noqa: S108 - of the container
    return {RUNTIME: _mount(_RUNTIME_MB, 0), str(WORKSPACE): files, **temporary}


def _mount(size_mb: int, owner: int, mode: str = "0700") -> str:
    return f"rw,exec,nosuid,nodev,mode={mode},uid={owner},gid={owner},size={size_mb}m"


def question_config(image: str, argv: Sequence[str]) -> dict[str, Any]:
    """Describe a container that answers one question about an image and goes."""
    walls = ResourceCaps(memory_mb=256, processes=32, disk_mb=1)
    plan = ContainerPlan(image=image, argv=tuple(argv), walls=walls, cpus=1.0, runtime="")
    return container_config(plan)
