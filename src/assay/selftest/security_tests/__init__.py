"""Security suite: attacks that every sandbox must stop, each with a control for its detector."""

from assay.selftest.security_tests import (
    equipment,
    floods,
    host_data,
    host_files,
    interpreters,
    kernel_surface,
    network,
    privileges,
    processes,
    protocol,
    races,
    resources,
)
from assay.selftest.security_tests.attack import HostileCase, cases_in, check_case

__all__ = ["CASES", "HostileCase", "check_case"]

CASES: tuple[HostileCase, ...] = tuple(
    case
    for module in (
        kernel_surface,
        host_data,
        privileges,
        processes,
        network,
        equipment,
        protocol,
        host_files,
        races,
        resources,
        floods,
        interpreters,
    )
    for case in cases_in(module)
)
