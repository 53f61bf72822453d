"""kill -9 of the service under load, and a new start: nothing that was finished is lost."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.eventually import eventually
from tests.support.leftovers import engine_of
from tests.support.served import GOAL, RIGHT, SMALL, events, script, served

SLEEP = "```python\nimport time\nprint('asleep', flush=True)\ntime.sleep(600)\n```"
ANSWER = {"text": f"```python\n{RIGHT}```"}
QUICK: list[dict[str, Any]] = [SMALL, ANSWER]
SLOW: list[dict[str, Any]] = [SMALL, {**ANSWER, "delay_s": 60}]


def asleep(client: httpx.Client) -> str:
    """Begin a turn whose code sleeps; returns its session."""
    session = client.post("/v1/sessions", json={}).json()["id"]
    client.post(f"/v1/sessions/{session}/turns", json={"message": "sleep"})
    with client.stream("GET", f"/v1/sessions/{session}/events") as stream:
        assert any(line == "event: cell_output_delta" for line in stream.iter_lines())
    return session


def tokens_counted(client: httpx.Client) -> int:
    return client.get("/v1/me").json()["usage"]["tokens"]


def tokens_of_runs(client: httpx.Client, runs: list[str]) -> int:
    return sum(client.get(f"/v1/runs/{run}").json()["budget"]["tokens"]["used"] for run in runs)


def tokens_of_turns(told: list[tuple[int, str, dict[str, Any]]]) -> int:
    used = [event["usage"] for _, _, event in told if "usage" in event]
    assert used
    return sum(usage["input_tokens"] + usage["output_tokens"] for usage in used)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_after_a_kill_results_are_there_runs_go_on_and_no_sandbox_is_left(
    tmp_path: Path, url: str
) -> None:
    more = {"ASSAY_RUNTIME_DIR": str(tmp_path / "runtime"), "ASSAY_SERVE__MAX_CONCURRENT_RUNS": "1"}
    if url:
        more["ASSAY_SERVE__DATABASE"] = url
    lines = tmp_path / "script.jsonl"
    with served(tmp_path, QUICK, more=more) as service, service.client() as client:
        done = client.post("/v1/runs", json=GOAL).json()["id"]
        assert events(client, f"/v1/runs/{done}/events")[-1][1] == "end"
        script(lines, [{"text": "Noted."}])
        talk = client.post("/chat", json={"message": "remember this"}).json()["session_id"]
        script(lines, SLOW)
        unfinished = [client.post("/v1/runs", json=GOAL).json()["id"] for _ in range(2)]
        assert await eventually(
            lambda: client.get(f"/v1/runs/{unfinished[0]}").json()["attempts"] != [], within_s=60
        )
        script(lines, [{"text": SLEEP}])
        cut = asleep(client)
        engine = engine_of(tmp_path / "runtime")
        service.kill()
    assert await eventually(engine.is_gone, within_s=60), engine.left()

    with served(tmp_path, QUICK, more=more) as service, service.client() as client:
        assert client.get(f"/v1/runs/{done}").json()["status"] == "accepted"
        assert client.get(f"/v1/runs/{done}/certificate").json()["run"] == done
        kept = events(client, f"/v1/sessions/{talk}/events", follow="false")
        assert kept[-1][2]["text"] == "Noted."
        for run in unfinished:
            assert events(client, f"/v1/runs/{run}/events")[-1][1] == "end"
            assert client.get(f"/v1/runs/{run}").json()["status"] == "accepted"
        told = events(client, f"/v1/sessions/{cut}/events", follow="false")
        assert (told[-1][1], told[-1][2]["status"]) == ("turn_ended", "interrupted")
        assert told[-2][2]["observation"] == "asleep\nThe cell was cut off."
        assert not client.get(f"/v1/sessions/{cut}").json()["busy"]
        # What the turn that was cut off had used is counted, too.
        of_runs = tokens_of_runs(client, [done, *unfinished])
        assert tokens_counted(client) == of_runs + tokens_of_turns([*kept, *told])
        assert service.stop() == 0
