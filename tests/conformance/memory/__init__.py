"""What every memory of failures promises, one coroutine per promise, for any way of keeping it."""

from tests.conformance.memory import judging, keeping, proven_code, recalling, scopes
from tests.conformance.memory.promise import (
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
