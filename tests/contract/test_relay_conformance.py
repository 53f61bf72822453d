"""A backend behind a relay keeps every promise that it keeps by itself."""

import pytest

from assay.selftest.run import CheckResult, run_suites
from tests.support.backends import open_native
from tests.support.relays import open_relayed

pytestmark = [pytest.mark.backends, pytest.mark.timeout(600)]


async def test_a_relayed_backend_keeps_every_promise() -> None:
    broken: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        if result.status == "failed":
            broken.append(result)

    # All of them over one connection, many at once, as a relay is used.
    async with open_native("namespaces") as native, open_relayed(native) as relayed:
        report = await run_suites(relayed, suites=["conformance"], on_result=note, checks_at_once=6)

    assert broken == []
    assert report.count("passed") > 100
