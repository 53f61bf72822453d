"""Conformance suite for sandboxes: one coroutine per requirement, for any backend."""

from assay.selftest.conformance import (
    branches,
    cells,
    devices,
    disk,
    endings,
    equipment,
    files,
    interpreter,
    lifecycle,
    limits,
    measures,
    output,
    shared_files,
    shown,
    starting,
)
from assay.selftest.conformance.promise import Requirement, promises_in

__all__ = ["PROMISES", "Requirement"]

PROMISES: tuple[Requirement, ...] = tuple(
    found
    for module in (
        endings,
        starting,
        devices,
        output,
        interpreter,
        limits,
        disk,
        lifecycle,
        measures,
        files,
        shared_files,
        cells,
        branches,
        shown,
        equipment,
    )
    for found in promises_in(module)
)
"""In the order in which a new backend should implement them."""
