"""How many files a process may have open: raised where we may, and told where it does not do."""

import resource
from contextlib import suppress
from typing import Final

MOST_OPEN: Final = 1 << 16
"""As many as we ever use: descriptors are closed up to here."""
TOO_FEW_HINT: Final = "allow more open files, such as with `ulimit -n 4096`"


def raise_limit() -> None:
    """Let this process, and those that it starts, open as many files as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _lesser(hard, MOST_OPEN)
    if _lesser(soft, MOST_OPEN) < wanted:
        # A kernel that refuses leaves us what we have.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def highest(below: int) -> int:
    """Return the highest number that a descriptor can have, if it is lower than `below`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _lesser(soft, below) - 1


def _lesser(limit: int, number: int) -> int:
    return number if limit == resource.RLIM_INFINITY else min(limit, number)
