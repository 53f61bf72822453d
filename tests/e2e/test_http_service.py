"""`assay serve` from outside: conversations, events, files, and requests that are not right."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.compose import free_ports
from tests.support.served import ASSAY, Served, environment, events, key_for, served

CELL = "I compute it.\n```python\nprint(6 * 7)\n```"
FIGURE = "```python\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n```"
_OUTPUT = ("cell_output_delta", "cell_ended")
SLEEP = "```python\nimport time\nprint('asleep', flush=True)\ntime.sleep(600)\n```"
LINES: tuple[dict[str, Any], ...] = (
    {"text": CELL},
    {"text": "It is 42."},
    {"text": FIGURE},
    {"text": "There."},
    {"text": "Yes.", "repeat": True},
)
ASKED_FOR_MODELS = 'assay_http_requests_total{method="GET",route="/v1/models"'
SMALL_LIMITS = {
    "ASSAY_SERVE__BODY_BYTES": "4096",
    "ASSAY_SERVE__UPLOAD_BYTES": "8192",
    "ASSAY_SERVE__CLIENT_TIMEOUT_S": "1.5",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with served(tmp_path_factory.mktemp("service"), LINES, more=SMALL_LIMITS) as one:
        yield one


@pytest.fixture
def client(service: Served) -> Generator[httpx.Client]:
    with service.client() as one:
        yield one


def test_a_conversation_is_answered_with_thought_code_and_observation(
    client: httpx.Client,
) -> None:
    first = client.post("/chat", json={"message": "6 times 7?"}).json()
    assert (first["thought"], first["code"]) == ("I compute it.", "print(6 * 7)")
    assert (first["observation"], first["answer"]) == ("42", "It is 42.")
    assert first["usage"]["calls"] == 2
    session = first["session_id"]

    second = client.post("/chat", json={"message": "plot", "session_id": session}).json()
    (figure,) = second["artifacts"]
    picture = client.get(figure["url"])
    assert picture.content.startswith(b"\x89PNG")
    assert picture.headers["content-type"] == "image/png"
    assert "sandbox" in picture.headers["content-security-policy"]

    told = events(client, f"/v1/sessions/{session}/events", follow="false")
    numbers = [number for number, _, _ in told]
    assert numbers == list(range(1, len(told) + 1))
    kinds = [kind for _, kind, _ in told]
    assert kinds[:3] == ["model_chosen", "turn_started", "cell_started"]
    rest = events(client, f"/v1/sessions/{session}/events", follow="false", after=numbers[-2])
    assert rest == told[-1:]
    by_header = client.get(
        f"/v1/sessions/{session}/events?follow=false", headers={"Last-Event-ID": str(numbers[-2])}
    )
    assert by_header.text.count("event: ") == 1
    (listed,) = client.get("/v1/sessions").json()["sessions"][:1]
    assert (listed["id"], listed["turns"], listed["title"]) == (session, 2, "6 times 7?")
    for form in ("ipynb", "markdown"):
        text = client.get(f"/v1/sessions/{session}/export", params={"format": form}).text
        assert "6 * 7" in text
    undone = client.post(f"/v1/sessions/{session}/undo")
    assert undone.json() == {"turn": 2}


def test_events_arrive_while_they_happen(client: httpx.Client, service: Served) -> None:
    session = client.post("/v1/sessions", json={}).json()["id"]
    with (
        service.client() as listener,
        listener.stream("GET", f"/v1/sessions/{session}/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": assay"
        assert client.post(f"/v1/sessions/{session}/turns", json={"message": "hi"}).json() == {
            "session_id": session,
            "turn": 1,
        }
        heard: list[str] = []
        for line in lines:
            if line.startswith("event: "):
                heard.append(line.removeprefix("event: "))
            if line == "event: turn_ended":
                break
    assert "reply_delta" in heard


def test_a_file_goes_in_and_comes_out_and_nothing_leads_out(client: httpx.Client) -> None:
    session = client.post("/v1/sessions", json={}).json()["id"]
    base = f"/v1/sessions/{session}/files"
    loaded = client.put(f"{base}/data/a.csv", content=b"a,b\n1,2\n")
    assert (loaded.status_code, loaded.json()["size_bytes"]) == (201, 8)
    assert client.get(base).json()["files"] == [{"path": "data/a.csv", "size_bytes": 8}]
    back = client.get(f"{base}/data/a.csv")
    assert back.content == b"a,b\n1,2\n"
    assert back.headers["content-disposition"].startswith("attachment")
    assert back.headers["x-content-type-options"] == "nosniff"
    ways_out = ("..%2f..%2fsession.json", "%2e%2e/session.json", "%2fetc%2fpasswd", "a%00b", "data")
    for path in ways_out:
        for method in ("GET", "PUT"):
            if (method, path) == ("PUT", "data"):
                continue
            answer = client.request(method, f"{base}/{path}", content=b"x" * (method == "PUT"))
            assert answer.status_code in {400, 404}, path
            assert "root:" not in answer.text
    for name in ("..%2f..%2fsession.json", "%2fetc%2fpasswd"):
        assert client.get(f"/v1/sessions/{session}/artifacts/{name}").status_code in {400, 404}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", 422),
        (b"[]", 422),
        (b"\xff\xfe", 422),
        (b'{"message": "\\ud800"}', 422),
        (b'{"message": "a\\u0000b"}', 422),
        (b'{"message": "  "}', 422),
        (b'{"message": 1}', 422),
        (b'{"message": "a", "more": 1}', 422),
        (b"[" * 4000, 400),
        (b'{"message": "' + b"a" * 5000 + b'"}', 413),
    ],
)
def test_a_body_that_is_not_right_is_refused(
    client: httpx.Client, content: bytes, expected: int
) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post("/chat", content=content, headers=headers)
    assert answer.status_code == expected
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_a_body_in_pieces_cannot_grow_without_end(client: httpx.Client) -> None:
    pieces = (b"x" * 1000 for _ in range(100))
    answer = client.post("/chat", content=pieces, headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_foreign_page_cannot_call(
    client: httpx.Client, headers: dict[str, str], expected: int
) -> None:
    body = json.dumps({"message": "hi"})
    given = {"Content-Type": "application/json", **headers}
    assert client.post("/chat", content=body, headers=given).status_code == expected


def test_no_page_of_another_origin_may_read_what_we_answer(client: httpx.Client) -> None:
    answer = client.options("/v1/me", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_model_that_is_a_file_of_this_machine_is_not_opened(client: httpx.Client) -> None:
    for model in ("scripted:/etc/passwd", "replay:/etc/passwd", "replay-lenient:/etc/passwd"):
        for path, body in (
            ("/chat", {"message": "hi", "model": model}),
            ("/v1/sessions", {"model": model}),
            ("/v1/runs", {"goal": "x", "model": model}),
            (
                "/v1/chat/completions",
                {"model": f"assay:{model}", "messages": [{"role": "user", "content": "x"}]},
            ),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert "root:" not in answer.text


def connect(service: Served) -> socket.socket:
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def test_who_does_not_say_what_they_want_is_not_waited_for(service: Served) -> None:
    for beginning in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"):
        with connect(service) as line:
            line.sendall(beginning)
            assert line.recv(100) == b""


def test_who_does_not_send_their_body_is_told_so(service: Served) -> None:
    with connect(service) as line:
        line.sendall(
            b"POST /chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert line.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_who_takes_nothing_in_keeps_nobody_else_from_being_answered(
    service: Served, client: httpx.Client
) -> None:
    session = client.post("/v1/sessions", json={}).json()["id"]
    with connect(service) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        line.sendall(
            f"GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        for _ in range(3):
            client.post("/chat", json={"message": "hi " * 400, "session_id": session})
        assert client.get("/healthz").status_code == 200


def test_a_turn_can_be_cancelled_and_a_second_one_has_to_wait(tmp_path: Path) -> None:
    lines = [{"text": SLEEP}, {"text": "Good morning.", "repeat": True}]
    with served(tmp_path, lines) as service, service.client() as client:
        session = client.post("/v1/sessions", json={}).json()["id"]
        turns = f"/v1/sessions/{session}/turns"
        with (
            service.client() as listener,
            listener.stream("GET", f"/v1/sessions/{session}/events") as stream,
        ):
            assert client.post(turns, json={"message": "sleep"}).status_code == 202
            told = stream.iter_lines()
            assert any(line == "event: cell_output_delta" for line in told)
            assert client.post(turns, json={"message": "more"}).status_code == 409
            assert client.delete(f"/v1/sessions/{session}").status_code == 409
            assert client.post(f"/v1/sessions/{session}/cancel").json() == {"cancelled": True}
            ended = next(line for line in told if '"turn_ended"' in line)
            assert '"interrupted"' in ended
        kept = events(client, f"/v1/sessions/{session}/events", follow="false")
        printed, cell = ([told for _, kind, told in kept if kind == name] for name in _OUTPUT)
        assert "".join(piece["text"] for piece in printed) == "asleep\n"
        assert cell[0]["observation"] == "asleep\nThe cell was interrupted."
        again = client.post("/chat", json={"message": "awake?", "session_id": session}).json()
        assert again["answer"] == "Good morning."
        assert client.delete(f"/v1/sessions/{session}").status_code == 204
        assert client.get(f"/v1/sessions/{session}").status_code == 404


def test_chat_front_ends_go_on_where_they_were(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hello"}]
    asked = {"model": "assay", "messages": messages}
    first = client.post("/v1/chat/completions", json=asked).json()
    answer = first["choices"][0]["message"]
    assert answer == {
        "role": "assistant",
        "content": "I compute it.\n\n```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n\nIt is 42.",
    }
    messages += [answer, {"role": "user", "content": [{"type": "text", "text": "and then?"}]}]
    second = client.post("/v1/chat/completions", json=asked).json()
    assert second["session_id"] == first["session_id"]
    messages[1] = {"role": "assistant", "content": "something else"}
    third = client.post("/v1/chat/completions", json=asked).json()
    assert third["session_id"] != first["session_id"]

    streamed = client.post(
        "/v1/chat/completions",
        json={"model": "assay", "messages": [{"role": "user", "content": "hm"}], "stream": True},
    ).text
    chunks = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert chunks[-1] == "[DONE]"
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks[:-1]]
    pieces = [piece for delta in deltas if (piece := delta.get("content"))]
    assert "".join(pieces) == answer["content"]


def test_the_page_and_the_reference_need_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path in ("/docs", "/redoc"):
        text = client.get(path).text
        assert "https://" not in text
        parts = [part for part in text.split('"') if part.startswith("/docs/parts/")]
        assert parts
        for part in parts:
            assert client.get(part).status_code == 200
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e/app.py").status_code in {400, 404}


def test_too_many_requests_are_told_when_to_come_again(tmp_path: Path) -> None:
    few = {"ASSAY_SERVE__QUOTA__REQUESTS_PER_MINUTE": "3"}
    with served(tmp_path, more=few) as service, service.client() as client:
        statuses = [client.get("/v1/me").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        refused = client.get("/v1/me")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["type"].endswith("rate-limited")


def test_who_may_only_read_changes_nothing(tmp_path: Path) -> None:
    key = key_for(tmp_path, "eve", "--role", "read-only")
    admin = key_for(tmp_path, "ada", "--role", "admin")
    with served(tmp_path) as service, service.client(key) as eve, service.client(admin) as ada:
        assert eve.get("/v1/sessions").status_code == 200
        assert eve.post("/v1/sessions", json={}).status_code == 403
        assert eve.post("/chat", json={"message": "x"}).status_code == 403
        refused = ada.get("/v1/audit").json()["entries"]
        assert {entry["outcome"] for entry in refused} == {"forbidden"}
        made = ada.post("/v1/keys", json={"name": "ben"}).json()
        with service.client(made["key"]) as ben:
            assert ben.get("/v1/me").json()["user"] == "ben"
            assert ada.delete(f"/v1/keys/{made['id']}").status_code == 204
            assert ben.get("/v1/me").status_code == 401
        assert made["key"] not in ada.get("/v1/keys").text


def test_it_refuses_to_be_open_to_others_without_keys(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*ASSAY, "serve", "--host", "0.0.0.0", "--port", "0"],  # noqa: S104 - that is the point
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "keys create" in ended.stderr


def test_metrics_count_without_naming_anybody(client: httpx.Client) -> None:
    session = client.post("/chat", json={"message": "hi"}).json()["session_id"]
    client.get(f"/v1/sessions/{session}")
    text = client.get("/metrics").text
    assert 'assay_turns_total{status="answered"}' in text
    assert 'route="/v1/sessions/{session_id}' in text
    assert session not in text


def test_a_service_that_looks_for_models_does_not_ask_itself_without_end(tmp_path: Path) -> None:
    [port] = free_ports(1)
    itself = {"ASSAY_MODELS__BASE_URLS__VLLM": f"http://127.0.0.1:{port}/v1"}

    with served(tmp_path, more=itself, port=port) as service, service.client() as client:
        listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
        counted = client.get("/metrics").text

    assert "assay:vllm:assay" not in listed
    [asked] = [line for line in counted.splitlines() if line.startswith(ASKED_FOR_MODELS)]
    assert float(asked.split()[-1]) == 2


def test_the_order_to_end_lets_a_turn_come_to_its_end(tmp_path: Path) -> None:
    lines = [{"text": "Slowly.", "delay_s": 2.0, "repeat": True}]
    with served(tmp_path, lines) as service, service.client() as client:
        answers: list[httpx.Response] = []
        ask = threading.Thread(
            target=lambda: answers.append(client.post("/chat", json={"message": "hi"}))
        )
        ask.start()
        with service.client() as other:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                listed = other.get("/v1/sessions").json()["sessions"]
                if listed and listed[0]["busy"]:
                    break
        assert service.stop() == 0
        ask.join(30)
        assert answers[0].json()["answer"] == "Slowly."
