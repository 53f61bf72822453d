"""Security suite: attacks that every sandbox must stop, each with a control for its detector."""

from assay.selftest.checks import checks_in
from assay.selftest.security_tests import (
    equipment,
    floods,
    host_data,
    host_files,
    interpreters,
    kernel_surface,
    layers,
    network,
    privileges,
    processes,
    protocol,
    races,
    resources,
)

ATTACKS = checks_in(
    kernel_surface,
    host_data,
    privileges,
    processes,
    network,
    equipment,
    protocol,
    host_files,
    layers,
    races,
    resources,
    floods,
    interpreters,
)
