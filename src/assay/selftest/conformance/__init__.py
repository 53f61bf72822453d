"""Conformance suite for sandboxes: one coroutine per requirement, for any backend."""

from assay.selftest.checks import checks_in
from assay.selftest.conformance import (
    cells,
    equipment,
    execution,
    files,
    interpreter,
    layers,
    lifecycle,
    limits,
    measures,
    output,
    shown,
)

REQUIREMENTS = checks_in(
    execution,
    output,
    interpreter,
    limits,
    lifecycle,
    measures,
    files,
    layers,
    cells,
    shown,
    equipment,
)
"""In the order in which a new backend should implement them."""
