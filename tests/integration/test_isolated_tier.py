"""The tier with namespaces, held to the shipped suites without root: no groups, no other uid."""

import os

import pytest

from assay.contracts.execution import Isolation
from tests.support.ordinary_user import OrdinaryUser
from tests.support.requirements import require
from tests.support.selftests import WITHIN_S, promised_at, run_selftest

pytestmark = pytest.mark.backends

NEVER_FEWER_THAN = 450


@pytest.mark.timeout(WITHIN_S + 60)
def test_the_isolated_tier_keeps_every_promise_for_an_ordinary_user_too(user: OrdinaryUser) -> None:
    require("root", available=os.geteuid() == 0, why="only root becomes another user")

    tested = run_selftest(user, namespaces=True)

    assert tested.failed == {}
    assert tested.isolation == "isolated"
    assert tested.held | tested.excused == promised_at(Isolation.ISOLATED)
    assert len(tested.held) > NEVER_FEWER_THAN
    assert tested.left == ()
