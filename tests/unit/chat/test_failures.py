"""Why a turn failed, and which status the HTTP API answers with."""

import pytest

from assay.chat.session import turn_error
from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
    SandboxUnavailableError,
)
from assay.server.api.problems import TurnFailedError, fault_of, sentence, turn_fault

CASES: list[tuple[AssayError, str, int]] = [
    (ModelUnavailableError("no answer"), "model-unavailable", 502),
    (ModelUnavailableError("slow", rate_limited=True), "model-rate-limited", 429),
    (ModelRefusedError("no"), "model-refused", 502),
    (ContextOverflowError("too long"), "context-too-long", 422),
    (BudgetExceededError("used up"), "quota-exceeded", 429),
    (
        SandboxUnavailableError("10.0.0.7:50051 is gone", dispatch="never_started"),
        "executor-unavailable",
        503,
    ),
]


@pytest.mark.parametrize(("error", "kind", "status"), CASES, ids=lambda value: str(value)[:20])
def test_an_error_has_one_type_and_status_wherever_it_is_raised(
    error: AssayError, kind: str, status: int
) -> None:
    failed = TurnFailedError(turn_error(error), "calm-owl-1", 2)
    in_turn = turn_fault(failed, for_admin=True)
    raised = fault_of(error, for_admin=True)
    assert (in_turn.kind, in_turn.status) == (raised.kind, raised.status) == (kind, status)
    assert in_turn.more == {"session_id": "calm-owl-1", "turn": 2}


def test_hosts_and_ports_of_the_server_are_for_admins() -> None:
    error = CASES[-1][0]
    assert "10.0.0.7" in fault_of(error, for_admin=True).detail
    assert "10.0.0.7" not in fault_of(error, for_admin=False).detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("there is no run", "There is no run."),
        ("`x` is wrong", "`x` is wrong."),
        ("openai:gpt-5 answered 429", "openai:gpt-5 answered 429."),
        ("Done!", "Done!"),
        ("", ""),
    ],
)
def test_a_detail_has_a_capital_and_a_period(text: str, expected: str) -> None:
    assert sentence(text) == expected
