"""The whole OpenAPI document, tried out: no mistake of ours, no answer that it does not name."""

from collections.abc import Generator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.http_routes import Operation, operations
from tests.support.served import Served, key_for, served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
GENEROUS = {
    "ASSAY_SERVE__QUOTA__REQUESTS_PER_MINUTE": "1000000",
    "ASSAY_AGENT__ATTEMPTS": "1",
    "ASSAY_SERVE__QUOTA__RUNS": "1",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Served, str, str, str]]:
    folder = tmp_path_factory.mktemp("schema")
    key = key_for(folder, "ada", "--role", "admin", more=GENEROUS)
    with served(folder, more=GENEROUS) as one, one.client(key) as client:
        session = client.post("/chat", json={"message": "hello"}).json()["session_id"]
        files = {"path": "test_x.py", "text": "def test_x():\n    assert False\n"}
        wanted = {"goal": "nothing", "tests": ["test_x.py"], "files": [files]}
        run = client.post("/v1/runs", json=wanted).json()["id"]
        yield one, key, session, run


@pytest.fixture(scope="module")
def api(service: tuple[Served, str, str, str]) -> Any:
    one, key, _, _ = service
    headers = {"Authorization": f"Bearer {key}"}
    return schemathesis.openapi.from_url(f"{one.url}/openapi.json", headers=headers)


@pytest.mark.parametrize(
    ("operation", "asked_rightly"),
    [
        (one, rightly)
        for one in operations()
        for rightly in (True, False)[: 1 + one.takes_something]
    ],
    ids=lambda value: str(value) if isinstance(value, Operation) else ("wrongly", "rightly")[value],
)
def test_every_operation_answers_as_it_is_described(
    operation: Operation,
    asked_rightly: bool,  # noqa: FBT001 - a parameter
    service: tuple[Served, str, str, str],
    api: Any,
) -> None:
    _, key, session, run = service
    known = {"session_id": session, "run_id": run}
    headers = {"Authorization": f"Bearer {key}"}
    asked = 0

    described = api[operation.path][operation.method]
    right, wrong = (described.as_strategy(generation_mode=mode) for mode in GenerationMode)

    @given(case=right if asked_rightly else wrong)
    @settings(
        max_examples=4,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def try_out(case: schemathesis.Case) -> None:
        nonlocal asked
        asked += 1
        # Every other time something that is there: what is not is soon told.
        for name in known.keys() & dict(case.path_parameters or {}).keys():
            if asked % 2 and operation.method != "DELETE":
                case.path_parameters[name] = known[name]
        if operation.path.endswith("/events"):
            case.query = {**(case.query or {}), "follow": "false"}
        response = case.call(headers=headers, timeout=30)
        case.validate_response(response, checks=CHECKS)

    try_out()
    assert asked
