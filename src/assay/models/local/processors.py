"""How many threads are worth starting: more than the real cores only makes them wait."""

import math
import os
import re
from pathlib import Path

_MOST = 8
"""Generating is bound by memory; beyond this, cores are better left to the tests."""


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
    """Return how many processors a container's control group grants."""
    try:
        text = (system / "fs/cgroup/cpu.max").read_text()
    except OSError:
        return _MOST
    granted = re.match(r"(\d+) (\d+)", text)
    return math.ceil(int(granted[1]) / int(granted[2])) if granted else _MOST
