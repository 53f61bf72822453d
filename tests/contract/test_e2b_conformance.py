"""The E2B backend keeps the promises of every sandbox, on a service that speaks E2B's protocol."""

import pytest

from assay.selftest.conformance import REQUIREMENTS
from assay.selftest.known_gaps import KNOWN_GAPS
from assay.selftest.run import CheckResult, run_suites
from tests.support.e2b_service.opening import open_backend_on_stand_in

pytestmark = [pytest.mark.backends, pytest.mark.timeout(600)]

OF_THE_STAND_IN = {
    # Nobody is root in a stand-in machine, so that its workspace is not where it is at E2B.
    "the_workspace_has_a_fixed_path",
}
"""What fails because the machines are not those of E2B."""


async def test_the_e2b_backend_keeps_what_the_service_can_keep() -> None:
    broken: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        if result.status == "failed":
            broken.append(result)

    async with open_backend_on_stand_in() as backend:
        report = await run_suites(backend, suites=["conformance"], on_result=note, checks_at_once=4)

    assert [one for one in broken if one.name not in OF_THE_STAND_IN] == []
    assert {one.name for one in broken} == OF_THE_STAND_IN
    assert report.count("passed") >= 140


def test_only_promises_are_excused() -> None:
    known = {check.name for check in REQUIREMENTS}

    for gaps in KNOWN_GAPS.values():
        assert gaps.keys() <= known
        assert all(gaps.values())
