"""What every journal promises, one coroutine per promise, to be run against any way of keeping."""

from assay.testing.journal_conformance import events, states, values
from assay.testing.journal_conformance.promise import (
    JournalPromise,
    JournalSubject,
    promises_in,
)

__all__ = ["JOURNAL_PROMISES", "JournalPromise", "JournalSubject"]

JOURNAL_PROMISES: tuple[JournalPromise, ...] = tuple(
    found for module in (events, values, states) for found in promises_in(module)
)
"""In the order in which a new journal best makes them true."""
