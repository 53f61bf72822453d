"""A service whose executor is elsewhere, and goes away."""

from contextlib import ExitStack
from pathlib import Path

import httpx
from anyio import to_thread

from tests.doubles.fake_sandbox import FakeBackend
from tests.support.executors import open_served
from tests.support.served import served

CELL = [{"text": "```python\nprint(6 * 7)\n```", "repeat": True}]
KEY = "bootstrap-key-of-the-older-systems"


async def test_an_executor_that_is_gone_is_an_error_of_the_request(tmp_path: Path) -> None:
    with ExitStack() as stack:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            async with open_served(FakeBackend(), tmp_path) as executor:
                # As the older systems name it.
                where = {
                    "CODE_EXECUTOR_HOST": "127.0.0.1",
                    "CODE_EXECUTOR_PORT": str(executor.port),
                    "ASSAY_SANDBOX__ISOLATION": "none",
                    "API_KEY": KEY,
                }
                starting = served(tmp_path, CELL, more=where)
                service = await to_thread.run_sync(stack.enter_context, starting)
                ready = await client.get(f"{service.url}/readyz")
                assert (ready.status_code, ready.json()["status"]) == (200, "ready")
            chat, ready_at = f"{service.url}/chat", f"{service.url}/readyz"
            body = {"message": "hello"}
            assert (await client.post(chat, json=body)).status_code == 401
            headers = {"Authorization": f"Bearer {KEY}"}
            answer = await client.post(chat, json=body, headers=headers)
            assert answer.status_code == 503, answer.text
            assert answer.json()["type"].endswith("/executor-unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            ready = await client.get(ready_at)
            assert ready.status_code == 503
            assert ready.json() == {
                "status": "degraded",
                "checks": {"database": "ok", "executor": "failed", "model": "ok"},
            }
            told = await client.get(ready_at, headers=headers)
            assert told.json()["details"]["executor"]
        assert KEY not in service.log.read_text()
