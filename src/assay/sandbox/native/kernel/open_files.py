"""Raises the limit of open files where possible, and explains a limit that is too low."""

import resource
from contextlib import suppress
from typing import Final

MOST_OPEN: Final = 1 << 16
"""The most that Assay uses: descriptors are closed up to here."""
TOO_FEW_HINT: Final = "allow more open files, such as with `ulimit -n 4096`"


def raise_limit() -> None:
    """Raise this process's limit of open files to the hard limit; its children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _lesser(hard, MOST_OPEN)
    if _lesser(soft, MOST_OPEN) < wanted:
        # If the kernel refuses, the limit stays as it is.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def highest(below: int) -> int:
    """Return the highest possible descriptor number below `below`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _lesser(soft, below) - 1


def _lesser(limit: int, number: int) -> int:
    return number if limit == resource.RLIM_INFINITY else min(limit, number)
