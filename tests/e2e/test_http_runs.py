"""Runs in the list of `assay serve`: they are graded there as in their details."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.served import GOAL, RIGHT, SMALL, WRONG, events, served

REPLIES = [SMALL, {"text": f"```python\n{RIGHT}```", "repeat": True}]


def test_a_run_has_the_same_grade_in_the_list_and_in_its_details(tmp_path: Path) -> None:
    with served(tmp_path, REPLIES) as service, service.client() as client:
        run = client.post("/v1/runs", json=GOAL).json()
        assert run["grade"] is None
        assert events(client, f"/v1/runs/{run['id']}/events")[-1][1] == "end"
        details = client.get(f"/v1/runs/{run['id']}").json()
        listed = client.get("/v1/runs").json()["runs"][0]
        assert (details["status"], details["grade"]) == ("accepted", "proven")
        assert (listed["status"], listed["grade"]) == ("accepted", "proven")
        assert set(listed) <= set(details)
        # Rows of older versions have no grade; it is read from the record of the run.
        with closing(sqlite3.connect(service.folder / "state/assay/serve.sqlite")) as database:
            database.execute("UPDATE assay_runs SET grade = ''")
            database.commit()
        for _ in range(2):
            assert client.get("/v1/runs").json()["runs"] == [listed]


def test_a_run_that_was_not_accepted_has_no_grade(tmp_path: Path) -> None:
    replies = [SMALL, {"text": f"```python\n{WRONG}```", "repeat": True}]
    with served(tmp_path, replies) as service, service.client() as client:
        goal = {**GOAL, "budget": {"attempts": 1}}
        run = client.post("/v1/runs", json=goal).json()["id"]
        assert events(client, f"/v1/runs/{run}/events")[-1][1] == "end"
        listed = client.get("/v1/runs").json()["runs"][0]
        assert listed["status"] not in {"accepted", "queued", "running"}
        assert listed["grade"] is client.get(f"/v1/runs/{run}").json()["grade"] is None
