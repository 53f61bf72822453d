"""The tier without namespaces, held to the shipped suites as the ordinary user it is made for."""

import json
import os

from tests.support.ordinary_user import an_ordinary_user
from tests.support.requirements import require


def test_the_landlock_tier_keeps_every_promise_it_makes() -> None:
    require("root", available=os.geteuid() == 0, why="only root becomes another user")

    with an_ordinary_user() as user:
        tested = user.run(
            [
                *("env", "ASSAY_SANDBOX__NAMESPACES=false"),
                *(str(user.python), "-m", "assay", "sandbox", "selftest", "--json"),
            ]
        )

    report = json.loads(tested.stdout)
    failed = {
        check["name"]: check["detail"] for check in report["checks"] if check["status"] == "failed"
    }
    assert failed == {}
    assert report["isolation"] == "restricted"
    assert report["passed"] > 400
