"""Docker, and gVisor on it, keep every promise they make."""

import pytest

from assay.selftest.run import NOT_HERE
from tests.support.docker import KINDS, Kind, open_docker_backend
from tests.support.repeating import run_suite

pytestmark = pytest.mark.backends

AT_ONCE = 2
NO_HOSTS_ON_GVISOR = "no hosts can be allowed on gVisor"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
async def test_docker_keeps_every_promise(kind: Kind) -> None:
    async with open_docker_backend(kind, warm_containers=0) as backend:
        report, broken = await run_suite(backend, "conformance", at_once=AT_ONCE)

    assert broken == []
    assert report.count("passed") > 190
    unexpected = [
        result
        for result in report.results
        if result.detail.startswith(NOT_HERE)
        and not (kind == "docker+runsc" and NO_HOSTS_ON_GVISOR in result.detail)
    ]
    assert unexpected == [], "packages and hosts can be had here"
