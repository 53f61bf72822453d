"""Which zygote suits a program: the smallest that has imported what the program will import."""

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
    """Leave out what this interpreter does not have, and stages that are empty without it."""
    present = (tuple(name for name in stage if find_spec(_top(name))) for stage in stages)
    return tuple(stage for stage in present if stage)


def suitable_stage(program: Program, stages: Stages) -> int:
    """Return 0 for the bare zygote, n for the one that has imported the first n stages.

    A guess from the text, and only ever a guess about speed: whatever a program imports that its
    zygote has not, it imports from disk.
    """
    if isinstance(program, Command):
        return 0
    homes = {_top(name): number for number, stage in enumerate(stages, 1) for name in stage}
    if b"pyarrow" in program.source and "pyarrow" not in homes:
        # The pandas of a zygote was imported without it, and so has no types of Arrow.
        return 0
    needed = _imported(program.source) - sys.stdlib_module_names
    # Something we do not know, a file of the workspace perhaps, may import anything in turn.
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
    """Leave out the stages that would be imported for nothing when one program is all there is."""
    return tuple(tuple(stage) for stage in stages[: suitable_stage(program, stages)])
