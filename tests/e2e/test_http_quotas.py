"""200 requests in parallel from one key: the quota holds, and the refused ones leave nothing."""

from collections import Counter
from pathlib import Path

import anyio
import httpx

from tests.support.served import Served, key_for, served

PARALLEL = 200
CAP = 6_000
LINES = [{"text": "I see.", "usage": {"input_tokens": 900, "output_tokens": 100}, "repeat": True}]
GENEROUS = {"ASSAY_SERVE__QUOTA__REQUESTS_PER_MINUTE": "1000000"}


async def ask_in_parallel(service: Served, key: str) -> list[httpx.Response]:
    answers: list[httpx.Response] = []
    limits = httpx.Limits(max_connections=PARALLEL)
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(
            base_url=service.url, headers=headers, limits=limits, timeout=120, trust_env=False
        ) as client,
        anyio.create_task_group() as tasks,
    ):

        async def ask() -> None:
            answers.append(await client.post("/chat", json={"message": "hello"}))

        for _ in range(PARALLEL):
            tasks.start_soon(ask)
    return answers


async def test_parallel_chats_stay_within_the_token_quota(tmp_path: Path) -> None:
    key = key_for(tmp_path, "ada", "--tokens-per-day", str(CAP))
    with served(tmp_path, LINES, more=GENEROUS) as service, service.client(key) as client:
        answers = await ask_in_parallel(service, key)
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["type"].endswith("quota-exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        used = client.get("/v1/me").json()["usage"]["tokens"]
        assert used == 1000 * statuses[200] <= CAP
        # No session was begun for what was refused before it could start.
        sessions = client.get("/v1/sessions", params={"limit": 200}).json()["sessions"]
        assert len(sessions) < PARALLEL
