"""What every journal promises, one coroutine per promise, to be run against any way of keeping."""

from tests.conformance.journal import events, states, values
from tests.conformance.journal.promise import (
    JournalPromise,
    JournalSubject,
    promises_in,
)

__all__ = ["JOURNAL_PROMISES", "JournalPromise", "JournalSubject"]

JOURNAL_PROMISES: tuple[JournalPromise, ...] = tuple(
    found for module in (events, values, states) for found in promises_in(module)
)
"""In the order in which a new journal best makes them true."""
