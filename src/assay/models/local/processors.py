"""Number of useful threads: more than the physical cores only makes them wait."""

import math
import os
import re
from pathlib import Path

_MOST = 8
"""Memory limits generation; cores beyond this are better left to the tests."""


def worthwhile_threads(system: Path = Path("/sys")) -> int:
    """Return the number of physical cores that this process may use, at most eight."""
    cores = {_core_of(system, processor) for processor in os.sched_getaffinity(0)}
    return max(1, min(len(cores), _quota(system), _MOST))


def _core_of(system: Path, processor: int) -> str:
    siblings = system / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    try:
        return siblings.read_text().strip()
    except OSError:
        return str(processor)


def _quota(system: Path) -> int:
    """Return the number of processors that a container's control group allows."""
    try:
        text = (system / "fs/cgroup/cpu.max").read_text()
    except OSError:
        return _MOST
    granted = re.match(r"(\d+) (\d+)", text)
    return math.ceil(int(granted[1]) / int(granted[2])) if granted else _MOST
