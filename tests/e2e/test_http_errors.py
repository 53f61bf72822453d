"""Errors of the HTTP API: a failed dependency is never a success, and every error has one form."""

import json
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.served import Served, events, key_for, served

REFUSED = "the provider does not accept the key"
FAILING: list[dict[str, Any]] = [{"error": "refused", "message": REFUSED}] * 50
SENTENCE = re.compile(r"[^a-z].*[.!?]", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A service whose model refuses every request."""

    service: Served
    admin: httpx.Client
    user: httpx.Client
    user_key: str


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Generator[Broken]:
    folder = tmp_path_factory.mktemp("broken")
    admin_key = key_for(folder, "ada", "--role", "admin")
    user_key = key_for(folder, "ben")
    with (
        served(folder, FAILING) as service,
        service.client(admin_key) as admin,
        service.client(user_key) as user,
    ):
        yield Broken(service=service, admin=admin, user=user, user_key=user_key)


def test_a_model_that_fails_is_not_a_success(broken: Broken) -> None:
    answer = broken.user.post("/chat", json={"message": "hello"})
    assert answer.status_code == 502
    told = answer.json()
    assert told["type"].endswith("/model-refused")
    assert REFUSED in told["detail"].lower()
    assert "answer" not in told
    kept = events(broken.user, f"/v1/sessions/{told['session_id']}/events", follow="false")
    ended = next(fields for _, kind, fields in kept if kind == "turn_ended")
    assert (ended["turn"], ended["status"]) == (told["turn"], "failed")
    assert ended["error"]["type"] == "model-refused"
    assert REFUSED in ended["error"]["detail"]


def test_openai_clients_show_what_went_wrong(broken: Broken) -> None:
    with openai.OpenAI(
        base_url=f"{broken.service.url}/v1", api_key=broken.user_key, max_retries=0
    ) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        with pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(model="assay", messages=messages)
        assert failed.value.status_code == 502
        assert REFUSED in str(failed.value).lower()
        assert failed.value.code == "model-refused"
        stream = client.chat.completions.create(model="assay", messages=messages, stream=True)
        with pytest.raises(openai.APIError) as broken_off:
            for _ in stream:
                pass
        assert REFUSED in str(broken_off.value).lower()
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(model="assay", messages=messages, n=2)
        assert (wrong.value.param, wrong.value.code) == ("n", "unsupported")
        with pytest.raises(openai.BadRequestError) as invalid:
            client.chat.completions.create(model="assay", messages=[])
        assert invalid.value.param == "messages"
        assert "messages" in str(invalid.value)
    with (
        openai.OpenAI(
            base_url=f"{broken.service.url}/v1", api_key="assay_wrong", max_retries=0
        ) as stranger,
        pytest.raises(openai.AuthenticationError, match="Invalid or revoked API key"),
    ):
        stranger.models.list()


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"n": 3}, "n"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": True}, "logprobs"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
]


@pytest.mark.parametrize(("more", "param"), UNSUPPORTED)
def test_what_would_be_dropped_silently_is_refused(
    broken: Broken, more: dict[str, Any], param: str
) -> None:
    body = {"model": "assay", "messages": [{"role": "user", "content": "hello"}], **more}
    answer = broken.user.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_model_that_fails_leaves_the_service_degraded(broken: Broken) -> None:
    broken.user.post("/chat", json={"message": "hello"})
    with broken.service.client() as stranger:
        ready = stranger.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "degraded",
        "checks": {"database": "ok", "executor": "ok", "model": "failed"},
    }
    assert REFUSED in broken.admin.get("/readyz").json()["details"]["model"]
    assert "details" not in broken.user.get("/readyz").json()


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/v1/runs", {"goal": "x", "check": ""}, None),
        ("/v1/runs", {"goal": "x", "files": [{"path": "a", "text": 1}]}, ["files[0].text"]),
        ("/v1/runs", {"goal": "x", "files": [{"text": "a"}]}, ["files[0].path"]),
        ("/v1/runs", {}, ["goal"]),
        ("/v1/runs", {"goal": "x\x00"}, ["goal"]),
        ("/v1/sessions", {"title": "a" * 999, "more": 1}, ["title", "more"]),
        ("/chat", {"message": " "}, ["message"]),
        ("/chat", [], [""]),
    ],
)
def test_wrong_fields_are_named_as_the_caller_wrote_them(
    broken: Broken, path: str, body: object, fields: list[str] | None
) -> None:
    answer = broken.user.post(path, json=body)
    assert answer.status_code in {400, 422}, answer.text
    told = answer.json()
    if fields is not None:
        assert [error["field"] for error in told["errors"]] == fields
    for error in told.get("errors", []):
        assert SENTENCE.fullmatch(error["message"]), error
    for inner in ("function-after", "constrained", "body.", "pydantic"):
        assert inner not in answer.text


def test_a_body_that_is_not_json_says_so(broken: Broken) -> None:
    headers = {"content-type": "application/json"}
    answer = broken.user.post("/chat", content=b"{", headers=headers)
    assert answer.status_code == 422
    assert "not valid JSON" in answer.json()["detail"]
    assert "body." not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kind"),
    [
        ("GET", "/v1/me", {"Authorization": ""}, 401, "unauthorized"),
        ("GET", "/v1/me", {"Host": "evil.example"}, 421, "foreign-host"),
        ("GET", "/v1/me", {"Origin": "http://evil.example"}, 403, "foreign-origin"),
        ("GET", "/v1/audit", {}, 403, "forbidden"),
        ("GET", "/v1/sessions/no-such-0000", {}, 404, "not-found"),
        ("GET", "/no/such/path", {}, 404, "not-found"),
        ("DELETE", "/v1/me", {}, 405, "method-not-allowed"),
        ("POST", "/v1/sessions", {"Content-Type": "text/plain"}, 415, "unsupported-media-type"),
    ],
)
def test_every_refusal_has_the_same_form(
    broken: Broken, method: str, path: str, headers: dict[str, str], status: int, kind: str
) -> None:
    answer = broken.user.request(method, path, headers=headers)
    told = answer.json()
    assert (answer.status_code, told["status"]) == (status, status)
    assert told["type"].endswith(f"/problems/{kind}")
    assert told["request_id"] == answer.headers["x-request-id"]
    assert SENTENCE.fullmatch(told["detail"]), told
    assert told["title"] == kind.replace("-", " ").capitalize()


def test_a_cell_that_fails_is_a_success_and_instructions_reach_the_model(tmp_path: Path) -> None:
    lines = [
        {"text": "```python\n1 / 0\n```"},
        {"text": "It fails.", "usage": {"input_tokens": 7, "output_tokens": 3}, "repeat": True},
    ]
    with served(tmp_path, lines) as service, service.client() as client:
        answer = client.post("/chat", json={"message": "divide"})
        assert answer.status_code == 200
        assert answer.json()["steps"][0]["failed"]
        body = {
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        lines_told = client.post("/v1/chat/completions", json=body).text.splitlines()
        chunks = [line.removeprefix("data: ") for line in lines_told if line]
        assert chunks[-1] == "[DONE]"
        last, *others = (json.loads(chunk) for chunk in reversed(chunks[:-1]))
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
        assert all(other["usage"] is None for other in others)
        assert client.get("/readyz").json()["status"] == "ready"


def test_a_model_that_cannot_be_used_is_refused_when_it_is_named(broken: Broken) -> None:
    for path, body in (
        ("/v1/sessions", {"model": "groq:llama"}),
        ("/v1/runs", {"goal": "x", "model": "groq:llama"}),
        ("/chat", {"message": "x", "model": "groq:llama"}),
    ):
        answer = broken.user.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert "key" in answer.json()["detail"]
