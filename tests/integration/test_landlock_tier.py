"""The tier without namespaces, held to the shipped suites as the ordinary user it is made for."""

import os

import pytest

from assay.contracts.execution import Isolation
from assay.sandbox.native.kernel import landlock
from tests.support.ordinary_user import OrdinaryUser
from tests.support.requirements import require
from tests.support.selftests import WITHIN_S, promised_at, run_selftest

pytestmark = pytest.mark.backends

SAFE_LANDLOCK = 6
NEVER_FEWER_THAN = 430


@pytest.mark.timeout(WITHIN_S + 60)
def test_the_landlock_tier_keeps_every_promise_it_makes(user: OrdinaryUser) -> None:
    require("root", available=os.geteuid() == 0, why="only root becomes another user")
    version = landlock.abi_version()
    require("landlock", available=version >= SAFE_LANDLOCK, why=f"Landlock has version {version}")

    tested = run_selftest(user, namespaces=False)

    assert tested.failed == {}
    assert tested.isolation == "restricted"
    assert tested.held | tested.excused == promised_at(Isolation.RESTRICTED)
    assert len(tested.held) > NEVER_FEWER_THAN
    assert tested.left == ()
