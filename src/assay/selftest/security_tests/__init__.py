"""Security suite: attacks that every sandbox must stop, each with a control for its detector."""

from assay.selftest.security_tests import (
    equipment,
    floods,
    host_data,
    host_files,
    host_inodes,
    host_metadata,
    interpreters,
    kernel_surface,
    memory,
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
        host_metadata,
        host_inodes,
        privileges,
        processes,
        network,
        equipment,
        protocol,
        host_files,
        races,
        memory,
        resources,
        floods,
        interpreters,
    )
    for case in cases_in(module)
)
