"""A program as the bytes a waiting worker reads: one line of JSON, then the source, if any."""

import json
import math
from dataclasses import dataclass
from typing import Any

from assay.contracts.execution import Command, Limits, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the sandbox adds to a program: where it works and what it may write."""

    workspace: str
    writable: tuple[str, ...] = ()
    """Landlock tier: the folders of the box."""
    enforcing_groups: bool
    """Whether control groups keep memory; otherwise a data limit is the backstop."""


def encode_request(program: Program, limits: Limits, setting: Setting) -> bytes:
    header: dict[str, Any] = {
        "cwd": str(program.cwd),
        "env": dict(program.env),
        "workspace": setting.workspace,
        "writable": setting.writable,
        "rlimits": _rlimits(limits, setting),
    }
    if isinstance(program, Command):
        return _line(header | {"kind": "command", "argv": program.argv})
    named = {"kind": "python", "filename": program.filename, "args": program.args}
    return _line(header | named) + program.source


def _line(header: dict[str, Any]) -> bytes:
    # ASCII-only JSON keeps surrogates, so names that are not UTF-8 arrive as they are.
    return json.dumps(header).encode() + b"\n"


def _rlimits(limits: Limits, setting: Setting) -> dict[str, int]:
    """Backstops per process; the totals are kept by control groups or the watch."""
    rlimits = {
        "RLIMIT_CPU": math.ceil(limits.cpu_s) + 1,
        "RLIMIT_NOFILE": limits.open_files,
        # PID 1 of the execution counts too.
        "RLIMIT_NPROC": limits.processes + 1,
        # Above the size of the workspace, so that a full disk is what a program sees.
        "RLIMIT_FSIZE": (limits.disk_mb << 20) * 2,
        "RLIMIT_MEMLOCK": 1 << 16,
        "RLIMIT_MSGQUEUE": 1 << 16,
        "RLIMIT_SIGPENDING": 1024,
    }
    if not setting.enforcing_groups:
        rlimits["RLIMIT_DATA"] = (limits.memory_mb << 20) * 4 + (1 << 30)
    return rlimits
