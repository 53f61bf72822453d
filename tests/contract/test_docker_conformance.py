"""Docker, and gVisor on it, keep every promise they make."""

import pytest

from assay.testing.selftest import NOT_HERE, CheckResult, run_suites
from tests.support.docker import KINDS, Kind, open_docker_backend

pytestmark = pytest.mark.backends

AT_ONCE = 2
NO_HOSTS_ON_GVISOR = "no hosts can be allowed on gVisor"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
async def test_docker_keeps_every_promise(kind: Kind) -> None:
    broken: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        if result.status == "failed":
            broken.append(result)

    async with open_docker_backend(kind, spares=0) as backend:
        report = await run_suites(
            backend, suites=["conformance"], on_result=note, checks_at_once=AT_ONCE
        )

    assert broken == []
    assert report.count("passed") > 190
    unexpected = [
        result
        for result in report.results
        if result.detail.startswith(NOT_HERE)
        and not (kind == "docker+runsc" and NO_HOSTS_ON_GVISOR in result.detail)
    ]
    assert unexpected == [], "packages and hosts can be had here"
