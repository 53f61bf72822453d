"""Encodes a program for a waiting worker: one line of JSON, then the source, if any."""

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from assay.contracts.execution import Command, Limits, Program
from assay.sandbox.native.guest import figures

_SPARE_PROCESSES: Final = 256
_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JailPaths:
    """Paths of a jail, and which component enforces its limits."""

    workspace: str
    temporary: str
    writable: tuple[str, ...] = ()
    """Landlock tier: the writable folders and devices of the sandbox."""
    packages: str = ""
    """The folder of the sandbox's packages."""
    groups_enforce: bool
    """Whether control groups limit memory and processes; otherwise the usage monitor does."""
    processes_elsewhere: int = 0
    """Landlock tier: processes of the same user outside of the sandbox."""


def encode_request(program: Program, limits: Limits, setting: JailPaths) -> bytes:
    header: dict[str, Any] = {
        "cwd": str(program.cwd),
        "env": {"HOME": setting.temporary, "TMPDIR": setting.temporary, **program.env},
        "workspace": setting.workspace,
        "writable": setting.writable,
        **_packages(setting),
        "rlimits": _rlimits(limits, setting),
    }
    if isinstance(program, Command):
        return _line(header | {"kind": "command", "argv": program.argv})
    named = {"kind": "python", "filename": program.filename, "args": program.args}
    return _line(header | named) + program.source


def encode_opening(limits: Limits, setting: JailPaths) -> bytes:
    """Encode the request for an interpreter; a worker recognizes it by its first bytes."""
    header: dict[str, Any] = {
        "kind": "interpreter",
        "cwd": "",
        "env": {
            "HOME": setting.temporary,
            "TMPDIR": setting.temporary,
            "MPLBACKEND": figures.BACKEND,
        },
        "workspace": setting.workspace,
        "writable": setting.writable,
        **_packages(setting),
        "rlimits": _rlimits(limits, setting),
    }
    return _line(header)


def _packages(setting: JailPaths) -> dict[str, Any]:
    # A jail with its own root contains the packages already.
    readable = [setting.packages] if setting.packages and setting.writable else []
    return {"packages": setting.packages, "readable": readable}


def _line(header: dict[str, Any]) -> bytes:
    # ASCII-only JSON keeps surrogates, so names that are not UTF-8 arrive unchanged.
    return json.dumps(header).encode() + b"\n"


def _rlimits(limits: Limits, setting: JailPaths) -> dict[str, int]:
    """Return fallback limits per process; control groups or the usage monitor keep the totals."""
    rlimits = {
        "RLIMIT_CPU": math.ceil(limits.cpu_s) + 1,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": _process_backstop(limits, setting),
        # Above the size of the workspace, so that the program sees a full disk first.
        "RLIMIT_FSIZE": limits.disk_mb * _MEGABYTE * 2,
        "RLIMIT_MEMLOCK": 1 << 16,
        "RLIMIT_MSGQUEUE": 1 << 16,
        "RLIMIT_SIGPENDING": 1024,
    }
    if not setting.groups_enforce:
        rlimits["RLIMIT_DATA"] = limits.memory_mb * _MEGABYTE * 4 + (1 << 30)
    return rlimits


def _process_backstop(limits: Limits, setting: JailPaths) -> int:
    if setting.writable:
        # The kernel counts per user, not per sandbox, and that user's other processes vary.
        return setting.processes_elsewhere + limits.processes + _SPARE_PROCESSES
    if setting.groups_enforce:
        # The control group refuses first, and unlike this limit it counts the refusals.
        return limits.processes + _SPARE_PROCESSES
    # PID 1 of the execution counts too.
    return limits.processes + 1
