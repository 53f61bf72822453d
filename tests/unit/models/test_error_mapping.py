"""What providers say when they say no, and what is made of it."""

import traceback
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from assay.contracts.errors import (
    AssayError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
)
from assay.models.connection import Connection, explain_failure, retry_after_s

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CONNECTION = Connection(base_url="", api_key=SecretStr("sk-secret"), key_variable="SOME_API_KEY")


def failure(status: int, body: object, **headers: str) -> AssayError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return explain_failure(
        status, body, name="some:model", connection=CONNECTION, headers=named, now=lambda: NOW
    )


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
        (400, {"message": "too long", "code": "context_length_exceeded"}),
        (400, {"message": "This model's maximum context length is 8192 tokens."}),
        (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "x"}}),
        (400, {"error": {"type": "invalid_request_error", "message": "prompt is too long: 2 > 1"}}),
        (
            400,
            [
                {
                    "error": {
                        "message": "The input token count (9) exceeds the maximum number of tokens"
                    }
                }
            ],
        ),
        (413, {"error": {"type": "request_too_large", "message": "Request exceeds the size"}}),
        (413, "<html>"),
        (400, {"error": "the request exceeds the available context size, try increasing it"}),
        (422, {"detail": "input is longer than the context window"}),
        (200, {"error": {"type": "exceed_context_size_error", "message": "in mid-stream"}}),
    ],
)
def test_too_long_is_an_overflow_in_every_dialect(status: int, body: object) -> None:
    assert isinstance(failure(status, body), ContextOverflowError)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_unavailable(status: int) -> None:
    assert isinstance(failure(status, {"error": {"message": "later"}}), ModelUnavailableError)


@pytest.mark.parametrize("status", [301, 400, 402, 404, 405, 409, 415, 422, 425])
def test_what_will_not_pass_is_refused(status: int) -> None:
    error = failure(status, {"error": {"message": "no"}})

    assert type(error) is ModelRefusedError
    assert "no" in str(error)


def test_a_limit_on_tokens_per_minute_is_no_overflow() -> None:
    body = {"error": {"message": "Too many tokens in the context window this minute."}}

    assert isinstance(failure(429, body), ModelUnavailableError)


@pytest.mark.parametrize("status", [402, 429])
def test_an_empty_account_is_not_asked_again(status: int) -> None:
    error = failure(status, {"error": {"message": "pay", "code": "insufficient_quota"}})

    assert type(error) is ModelRefusedError
    assert "billing" in error.hint


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_refused_with_the_name_of_its_variable(status: int) -> None:
    error = failure(status, {"error": {"message": "Incorrect key sk-secret given"}})

    assert type(error) is ModelRefusedError
    assert "SOME_API_KEY" in error.hint
    assert "sk-secret" not in "".join(traceback.format_exception(error))
    assert "[key]" in str(error)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"type": "overloaded_error", "message": "x"}}, ModelUnavailableError),
        ({"error": {"message": "x", "code": 502}}, ModelUnavailableError),
        ({"error": {"message": "of no known kind"}}, ModelUnavailableError),
        ("the engine died", ModelUnavailableError),
        (None, ModelUnavailableError),
        ([], ModelUnavailableError),
        ({"error": {"type": "invalid_request_error", "message": "x"}}, ModelRefusedError),
        ({"error": {"message": "x", "code": "401"}}, ModelRefusedError),
    ],
)
def test_an_error_in_mid_stream_is_told_by_its_kind(body: object, kind: type[AssayError]) -> None:
    assert type(failure(200, body)) is kind


def test_a_long_page_is_quoted_in_part() -> None:
    assert len(str(failure(500, "<p>\n" * 10_000))) < 600


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RETRY-AFTER": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:35 GMT"}, 30.0),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:35 -0000"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_a_wait_is_read_in_every_form(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(headers, now=lambda: NOW) == wait_s


def test_a_wait_in_the_body_counts_where_no_header_has_one() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [{}, detail]}}

    in_body, in_header = failure(429, body), failure(429, body, retry_after="2")

    assert isinstance(in_body, ModelUnavailableError)
    assert isinstance(in_header, ModelUnavailableError)
    assert (in_body.retry_after_s, in_header.retry_after_s) == (34.5, 2.0)


def test_an_error_shows_no_key_even_to_those_who_look_inside() -> None:
    assert "sk-secret" not in repr(CONNECTION)
    assert "sk-secret" not in CONNECTION.clean("said sk-secret")


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_an_error_that_came_at_once_says_that_nothing_was_begun(status: int) -> None:
    error = failure(status, None)

    assert isinstance(error, ModelUnavailableError)
    assert error.not_charged


def test_an_error_in_mid_stream_may_have_cost_something() -> None:
    error = failure(200, {"error": {"type": "server_error"}})

    assert isinstance(error, ModelUnavailableError)
    assert not error.not_charged


@pytest.mark.parametrize("status", [504, 524])
def test_an_error_of_a_gateway_that_gave_up_may_have_cost_something(status: int) -> None:
    error = failure(status, None)

    assert isinstance(error, ModelUnavailableError)
    assert not error.not_charged


@pytest.mark.parametrize(
    "message",
    [
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "registry.ollama.ai/library/gemma:7b does not support tools",
    ],
)
def test_a_server_that_refuses_tools_is_answered_with_a_setting(message: str) -> None:
    error = failure(400, {"error": {"message": message}})

    assert isinstance(error, ModelRefusedError)
    assert "tool_calls = false" in error.hint
