"""How a program is handed to a jail: the choice of its zygote, and the message to the worker.

The zygote is the smallest that has imported the program's modules. The message is one line of JSON,
then the source, if any.
"""

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from assay.contracts.execution import Command, Limits, Program
from assay.sandbox.native.guest import display

Stages = Sequence[Sequence[str]]

_IMPORT: Final = re.compile(
    rb"^[ \t]*(?:import[ \t]+([\w., \t]+)|from[ \t]+([\w.]+)[ \t]+import\b)", re.MULTILINE
)


def installed_stages(stages: Stages) -> tuple[tuple[str, ...], ...]:
    """Leave out modules that this interpreter does not have, and stages that are then empty."""
    present = (tuple(name for name in stage if find_spec(_top(name))) for stage in stages)
    return tuple(stage for stage in present if stage)


def suitable_stage(program: Program, stages: Stages) -> int:
    """Return 0 for the bare zygote, n for the zygote that has imported the first n stages.

    This is a guess from the text, and it affects only speed: the program itself imports the modules
    that its zygote has not imported.
    """
    if isinstance(program, Command):
        return 0
    homes = {_top(name): number for number, stage in enumerate(stages, 1) for name in stage}
    if b"pyarrow" in program.source and "pyarrow" not in homes:
        # The zygote imported pandas without pyarrow, so that pandas has no Arrow types.
        return 0
    needed = _imported(program.source) - sys.stdlib_module_names
    # An unknown module, such as a file of the workspace, may import any other.
    return max((homes.get(name, len(stages)) for name in needed), default=0)


def _imported(source: bytes) -> set[str]:
    found: set[str] = set()
    for names, origin in _IMPORT.findall(source):
        for name in (names or origin).decode(errors="replace").split(","):
            found.add(_top(name.strip().partition(" ")[0]))
    return found - {""}


def _top(name: str) -> str:
    return name.partition(".")[0]


def needed_stages(program: Program, stages: Stages) -> tuple[tuple[str, ...], ...]:
    """Leave out the stages that one given program does not need."""
    return tuple(tuple(stage) for stage in stages[: suitable_stage(program, stages)])


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
    """The folders of the sandbox's packages, separated by colons."""
    folders: tuple[str, ...] = ()
    """The folders of the workspace that are on the import path."""
    groups_enforce: bool
    """Whether control groups limit memory and processes; otherwise the usage monitor does."""
    processes_elsewhere: int = 0
    """Landlock tier: processes of the same user outside of the sandbox."""


def encode_request(program: Program, limits: Limits, paths: JailPaths) -> bytes:
    header: dict[str, Any] = {"cwd": str(program.cwd), **_common_fields(limits, paths)}
    header["env"] |= program.env
    if isinstance(program, Command):
        return _line(header | {"kind": "command", "argv": program.argv})
    named = {"kind": "python", "filename": program.filename, "args": program.args}
    return _line(header | named) + program.source


def encode_opening(limits: Limits, paths: JailPaths) -> bytes:
    """Encode the request for an interpreter; a worker recognizes it by its first bytes."""
    header: dict[str, Any] = {
        "kind": "interpreter",
        "cwd": "",
        **_common_fields(limits, paths),
    }
    header["env"]["MPLBACKEND"] = display.FIGURE_BACKEND
    return _line(header)


def _common_fields(limits: Limits, paths: JailPaths) -> dict[str, Any]:
    return {
        "env": {"HOME": paths.temporary, "TMPDIR": paths.temporary},
        "workspace": paths.workspace,
        "writable": paths.writable,
        "packages": paths.packages,
        "folders": paths.folders,
        # A jail with its own root contains the packages already.
        "readable": paths.packages.split(":") if paths.packages and paths.writable else [],
        "rlimits": _rlimits(limits, paths),
    }


def _line(header: dict[str, Any]) -> bytes:
    # ASCII-only JSON keeps surrogates, so names that are not UTF-8 arrive unchanged.
    return json.dumps(header).encode() + b"\n"


def _rlimits(limits: Limits, paths: JailPaths) -> dict[str, int]:
    """Return fallback limits per process; control groups or the usage monitor keep the totals."""
    if paths.writable:
        # The kernel counts per user, not per sandbox, and that user's other processes vary.
        processes = paths.processes_elsewhere + limits.processes + _SPARE_PROCESSES
    elif paths.groups_enforce:
        # The control group refuses first, and unlike this limit it counts the refusals.
        processes = limits.processes + _SPARE_PROCESSES
    else:
        # PID 1 of the execution counts too.
        processes = limits.processes + 1
    rlimits = {
        "RLIMIT_CPU": math.ceil(limits.cpu_s) + 1,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_NPROC": processes,
        # Above the size of the workspace, so that the program sees a full disk first.
        "RLIMIT_FSIZE": limits.disk_mb * _MEGABYTE * 2,
        "RLIMIT_MEMLOCK": 1 << 16,
        "RLIMIT_MSGQUEUE": 1 << 16,
        "RLIMIT_SIGPENDING": 1024,
    }
    if not paths.groups_enforce:
        rlimits["RLIMIT_DATA"] = limits.memory_mb * _MEGABYTE * 4 + (1 << 30)
    return rlimits
