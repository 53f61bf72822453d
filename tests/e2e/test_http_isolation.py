"""One user cannot see, stop, change or list anything of another: a case for every operation."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.http_routes import Operation, operations
from tests.support.served import GOAL, RIGHT, SMALL, Served, events, key_for, served

WORDS = "seven-blue-herons"
BODIES: dict[str, Any] = {
    "PATCH /v1/sessions/{session_id}": {"title": "taken"},
    "POST /v1/sessions/{session_id}/turns": {"message": "hello"},
    "POST /chat": {"message": "hello", "session_id": "{session_id}"},
}
OWN = {
    # What one is told here is one's own, or everybody's.
    "GET /v1/me",
    "GET /v1/models",
    "GET /v1/sessions",
    "POST /v1/sessions",
    "GET /v1/runs",
    "POST /v1/runs",
    "POST /v1/certificates/check",
    "GET /v1/memory",
    "GET /v1/memory/stats",
    "POST /v1/chat/completions",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
}
ADMIN = {"GET /v1/keys", "POST /v1/keys", "DELETE /v1/keys/{key_id}", "GET /v1/audit"}


@dataclass(frozen=True)
class Two:
    service: Served
    ada: httpx.Client
    """Has a session, a run and a memory."""
    ben: httpx.Client
    names: dict[str, str]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Generator[Two]:
    folder = tmp_path_factory.mktemp("isolation")
    keys = {name: key_for(folder, name) for name in ("ada", "ben")}
    lines = [SMALL, {"text": f"```python\n{RIGHT}```", "repeat": True}]
    with (
        served(folder, lines) as service,
        service.client(keys["ada"]) as ada,
        service.client(keys["ben"]) as ben,
    ):
        session = ada.post("/v1/sessions", json={"title": WORDS}).json()["id"]
        ada.put(f"/v1/sessions/{session}/files/{WORDS}.txt", content=WORDS.encode())
        run = ada.post("/v1/runs", json={**GOAL, "goal": f"{WORDS}: write calc.py"}).json()["id"]
        assert events(ada, f"/v1/runs/{run}/events")[-1][1] == "end"
        names = {
            "session_id": session,
            "run_id": run,
            "path": f"{WORDS}.txt",
            "name": f"{WORDS}.png",
            "record_id": "0" * 12,
            "key_id": "0" * 12,
        }
        yield Two(service, ada, ben, names)


def filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(item, names) for name, item in value.items()}
    return value.format(**names) if isinstance(value, str) else value


def ask(client: httpx.Client, operation: Operation, names: dict[str, str]) -> httpx.Response:
    path = operation.path.replace(":path", "").format(**names)
    params = {"follow": "false"} if path.endswith("/events") else {}
    body = BODIES.get(str(operation))
    if operation.method == "PUT":
        return client.put(path, content=b"x")
    return client.request(
        operation.method, path, params=params, json=filled(body, names) if body else None
    )


foreign = [one for one in operations() if str(one) not in OWN | ADMIN]


@pytest.mark.parametrize("operation", foreign, ids=str)
def test_what_is_anothers_does_not_exist(operation: Operation, two: Two) -> None:
    answer = ask(two.ben, operation, two.names)
    assert answer.status_code == 404, answer.text
    told = answer.json()["detail"]
    nowhere = {**two.names, "session_id": "no-such-0000", "run_id": "no-such-0000"}
    unknown = ask(two.ben, operation, nowhere).json()["detail"]
    assert told.replace(two.names["session_id"], "").replace(two.names["run_id"], "") == (
        unknown.replace("no-such-0000", "")
    )


@pytest.mark.parametrize(
    "operation",
    [one for one in foreign if one.method == "GET" and "record_id" not in one.path],
    ids=str,
)
def test_the_owner_gets_it(operation: Operation, two: Two) -> None:
    names = {**two.names, "name": "nothing.png"}
    if "/runs/" in operation.path:
        names["path"] = "calc.py"
    answer = ask(two.ada, operation, names)
    expected = 404 if "/artifacts/{name}" in operation.path else 200
    assert answer.status_code == expected, answer.text


@pytest.mark.parametrize("operation", [one for one in operations() if str(one) in ADMIN], ids=str)
def test_only_admins_look_after_keys(operation: Operation, two: Two) -> None:
    assert ask(two.ben, operation, two.names).status_code == 403


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_nobody_gets_in_without_a_key(operation: Operation, two: Two) -> None:
    with two.service.client() as stranger, two.service.client("assay_wrong") as wrong:
        for client in (stranger, wrong):
            status = ask(client, operation, two.names).status_code
            # After many wrong keys from one address, it is not listened to for a while.
            expected = {200} if operation.path in {"/healthz", "/readyz"} else {401, 429}
            assert status in expected


@pytest.mark.parametrize(
    "operation", [one for one in operations() if str(one) in OWN and one.method == "GET"], ids=str
)
def test_no_list_names_what_is_anothers(operation: Operation, two: Two) -> None:
    answer = ask(two.ben, operation, two.names)
    assert answer.status_code == 200
    for name in (WORDS, two.names["session_id"], two.names["run_id"], "ada"):
        assert name not in answer.text


def test_every_operation_has_a_case() -> None:
    known = OWN | ADMIN | set(map(str, foreign))
    assert known == set(map(str, operations()))
    parameters = ("{session_id}", "{run_id}", "{record_id}")
    by_name = {str(one) for one in operations() if any(p in one.path for p in parameters)}
    assert by_name | {"POST /chat"} == set(map(str, foreign))


def test_what_was_refused_changed_nothing(two: Two) -> None:
    session, run = two.names["session_id"], two.names["run_id"]
    assert two.ada.get(f"/v1/sessions/{session}").json()["title"] == WORDS
    assert two.ada.get(f"/v1/sessions/{session}/files/{WORDS}.txt").text == WORDS
    assert two.ada.get(f"/v1/runs/{run}").json()["status"] == "accepted"


def test_no_key_is_in_the_log_or_the_database(two: Two) -> None:
    keys = [
        client.headers["authorization"].removeprefix("Bearer ") for client in (two.ada, two.ben)
    ]
    state = two.service.folder / "state"
    texts = [two.service.log.read_bytes()]
    texts += [path.read_bytes() for path in state.rglob("*") if path.is_file()]
    for key in keys:
        assert not any(key.encode() in text for text in texts)
    assert b"answered" in texts[0]
