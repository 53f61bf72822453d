"""Docker, and gVisor on it, hold against every attack, and every detector can fire."""

import pytest

from tests.support.docker import KINDS, Kind, open_docker_backend
from tests.support.recycling import recycling
from tests.support.repeating import run_suite

pytestmark = pytest.mark.backends

AT_ONCE = 2
NEVER_FEWER_THAN = {"docker": 350, "docker+runsc": 230}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
async def test_docker_holds_against_every_attack(kind: Kind) -> None:
    async with (
        open_docker_backend(kind, warm_containers=0) as backend,
        recycling(backend) as recycled,
    ):
        report, broken = await run_suite(recycled, "hostile", at_once=AT_ONCE)

    assert broken == []
    assert report.count("passed") > NEVER_FEWER_THAN[kind]
