"""Chooses the zygote for a program: the smallest that has imported the program's modules."""

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from assay.contracts.execution import Command, Program

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
