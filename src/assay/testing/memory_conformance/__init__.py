"""What every memory of failures promises, one coroutine per promise, for any way of keeping it."""

from assay.testing.memory_conformance import judging, keeping, proven_code, recalling, scopes
from assay.testing.memory_conformance.promise import (
    MemoryPromise,
    MemorySubject,
    promises_in,
)

__all__ = ["MEMORY_PROMISES", "MemoryPromise", "MemorySubject"]

MEMORY_PROMISES: tuple[MemoryPromise, ...] = tuple(
    found
    for module in (recalling, keeping, scopes, judging, proven_code)
    for found in promises_in(module)
)
"""In the order in which a new memory best makes them true."""
