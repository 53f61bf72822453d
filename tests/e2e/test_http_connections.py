"""What clients without a key, or with many connections, cost the service."""

import json
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.eventually import eventually
from tests.support.served import ASSAY, Served, environment, key_for, served

SHARE = 8
LIMITS = {
    "ASSAY_SERVE__CONNECTIONS": "20",
    "ASSAY_SERVE__CONNECTIONS_PER_ADDRESS": str(SHARE),
    "ASSAY_SERVE__BODY_S": "1.5",
    "ASSAY_SERVE__CLIENT_TIMEOUT_S": "60",
}
HEAD = "POST /chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Served, str]]:
    folder = tmp_path_factory.mktemp("connections")
    key = key_for(folder, "ada")
    with served(folder, more=LIMITS) as one:
        yield one, key


def connect(service: Served) -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=50)


def test_the_key_is_checked_before_the_body_is_read(service: tuple[Served, str]) -> None:
    one, _ = service
    with connect(one) as line:
        head = f"{HEAD}Authorization: Bearer assay_wrong\r\nContent-Length: 100000\r\n\r\n"
        line.sendall(head.encode())
        answer = line.recv(4000)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer.lower()


def test_a_body_has_to_be_there_by_a_deadline(service: tuple[Served, str]) -> None:
    one, key = service
    with connect(one) as line:
        head = f"{HEAD}Authorization: Bearer {key}\r\nContent-Length: 100\r\n\r\n{{"
        line.sendall(head.encode())
        # Long before the wait for a single piece is over.
        assert line.recv(4000).startswith(b"HTTP/1.1 408 ")


def test_one_address_cannot_take_all_connections(service: tuple[Served, str]) -> None:
    one, key = service
    headers = {"Authorization": f"Bearer {key}"}

    def ask(address: str) -> httpx.Response:
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(base_url=one.url, transport=transport, timeout=50) as client:
            return client.get("/v1/me", headers=headers)

    with ExitStack() as stack:
        for _ in range(SHARE):
            stack.enter_context(connect(one))
        refused = ask("127.0.0.1")
        assert refused.status_code == 503
        assert refused.headers["content-type"] == "application/problem+json"
        told = refused.json()
        assert told["type"].endswith("/overloaded")
        assert "this address" in told["detail"]
        assert int(refused.headers["retry-after"]) >= 1
        assert ask("127.0.0.2").status_code == 200


async def test_an_address_that_leaves_gets_its_share_back(service: tuple[Served, str]) -> None:
    one, key = service

    def is_served() -> bool:
        with one.client(key) as client:
            return client.get("/v1/me").status_code == 200

    assert await eventually(is_served)


def revoke(folder: Path, key_id: str) -> None:
    """Revoke a key in another process."""
    command = [*ASSAY, "keys", "revoke", key_id, "--yes"]
    subprocess.run(command, env=environment(folder), capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize("by_command", [False, True])
def test_a_stream_ends_when_its_key_is_revoked(tmp_path: Path, *, by_command: bool) -> None:
    admin_key = key_for(tmp_path, "ada", "--role", "admin")
    with served(tmp_path) as service, service.client(admin_key) as admin:
        made = admin.post("/v1/keys", json={"name": "ben"}).json()
        with service.client(made["key"]) as ben:
            session = ben.post("/v1/sessions", json={}).json()["id"]
            with ben.stream("GET", f"/v1/sessions/{session}/events") as stream:
                lines = stream.iter_lines()
                assert next(lines) == ": assay"
                if by_command:
                    revoke(tmp_path, made["id"])
                else:
                    assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204
                # It ends by itself; the client would wait for 60 s.
                assert list(lines) is not None
            assert ben.get("/v1/me").status_code == 401
        entries = admin.get("/v1/audit", params={"action": "key.reject"}).json()["entries"]
        assert [entry["key_id"] for entry in entries] == [made["id"]]
        assert made["key"] not in json.dumps(entries)
