"""The audit log: every execution, by whom, and how it ended."""

import hashlib
from pathlib import Path
from typing import Any

from tests.support.served import GOAL, RIGHT, SMALL, events, key_for, served

CODE = "print(6 * 7)"
LINES: list[dict[str, Any]] = [
    {"text": f"```python\n{CODE}\n```"},
    {"text": "It is 42."},
    {"text": "```python\n1 / 0\n```"},
    {"text": "It fails."},
    {"error": "refused", "message": "no"},
]


def test_turns_and_cells_are_in_the_audit_log(tmp_path: Path) -> None:
    admin = key_for(tmp_path, "ada", "--role", "admin")
    key = key_for(tmp_path, "ben")
    with (
        served(tmp_path, LINES) as service,
        service.client(key) as ben,
        service.client(admin) as ada,
    ):
        session = ben.post("/chat", json={"message": "6 * 7?"}).json()["session_id"]
        for message in ("divide", "fail"):
            ben.post("/chat", json={"message": message, "session_id": session})
        key_id = next(k["id"] for k in ada.get("/v1/keys").json()["keys"] if k["name"] == "ben")

        def read(**filters: Any) -> list[dict[str, Any]]:
            return ada.get("/v1/audit", params=filters).json()["entries"]

        cells = read(action="cell.run", target=session)
        assert [cell["outcome"] for cell in cells] == ["failed", "succeeded"]
        done = cells[-1]
        assert (done["user"], done["key_id"], done["part"]) == ("ben", key_id, "turn 1, step 1")
        assert done["code_sha256"] == hashlib.sha256(CODE.encode()).hexdigest()
        assert done["duration_s"] >= 0
        assert done["model"].startswith("scripted:")
        assert done["backend"]
        turns = read(action="turn.run", user="ben")
        assert [turn["outcome"] for turn in turns] == ["model-refused", "answered", "answered"]
        assert read(user="nobody") == []
        assert read(since=turns[0]["at"], action="turn.run") == turns[:1]
        # Page by page, nothing twice and nothing left out.
        everything = read(limit=500)
        pages: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            params = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            page = ada.get("/v1/audit", params=params).json()
            pages += page["entries"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert pages == everything


def test_attempts_of_runs_and_what_a_crash_cuts_off_are_in_the_audit_log(tmp_path: Path) -> None:
    lines = [SMALL, {"text": f"```python\n{RIGHT}```", "repeat": True}]
    with served(tmp_path, lines) as service, service.client() as client:
        run = client.post("/v1/runs", json=GOAL).json()["id"]
        assert events(client, f"/v1/runs/{run}/events")[-1][1] == "end"
        found = client.get("/v1/audit", params={"action": "attempt.run"}).json()["entries"]
        assert [(entry["target"], entry["outcome"]) for entry in found] == [(run, "accepted")]
        assert len(found[0]["code_sha256"]) == 64
    asleep = "```python\nimport time\nprint('asleep', flush=True)\ntime.sleep(600)\n```"
    with served(tmp_path, [{"text": asleep, "repeat": True}]) as service:
        with service.client() as client:
            session = client.post("/v1/sessions", json={}).json()["id"]
            client.post(f"/v1/sessions/{session}/turns", json={"message": "sleep"})
            with client.stream("GET", f"/v1/sessions/{session}/events") as stream:
                assert any(line == "event: cell_output_delta" for line in stream.iter_lines())
        service.kill()
    with served(tmp_path) as service, service.client() as client:
        found = client.get("/v1/audit", params={"target": session}).json()["entries"]
        outcomes = {entry["action"]: entry["outcome"] for entry in found}
        assert outcomes["turn.run"] == outcomes["cell.run"] == "interrupted"
