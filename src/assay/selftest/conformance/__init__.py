"""Conformance suite for sandboxes: one coroutine per requirement, for any backend."""

from assay.selftest.conformance import (
    cells,
    equipment,
    execution,
    files,
    interpreter,
    lifecycle,
    limits,
    measures,
    output,
    shown,
)
from assay.selftest.conformance.requirement import Requirement, promises_in

__all__ = ["PROMISES", "Requirement"]

PROMISES: tuple[Requirement, ...] = tuple(
    found
    for module in (
        execution,
        output,
        interpreter,
        limits,
        lifecycle,
        measures,
        files,
        cells,
        shown,
        equipment,
    )
    for found in promises_in(module)
)
"""In the order in which a new backend should implement them."""
