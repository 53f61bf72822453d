"""The API and the MCP servers say that they cannot work while their executor is gone."""

from pathlib import Path

import anyio
import anyio.to_thread
import httpx2

from tests.doubles.fake_sandbox import FakeBackend
from tests.support import mcp_servers, served
from tests.support.executors import open_served


async def test_the_health_of_services_turns_bad_without_their_executor(tmp_path: Path) -> None:
    api_folder, mcp_folder = tmp_path / "api", tmp_path / "mcp"
    mcp_folder.mkdir()
    async with open_served(FakeBackend(), tmp_path) as executor:
        remote = {
            "ASSAY_SANDBOX__BACKEND": "remote",
            "ASSAY_SERVE__REQUIRE_KEYS": "true",
            "ASSAY_SANDBOX__ISOLATION": "none",
            "ASSAY_SANDBOX__REMOTE__ADDRESSES": f"127.0.0.1:{executor.port}",
        }
        api = served.served(api_folder, more=remote)
        mcp = mcp_servers.serve(mcp_folder, which="executor", **remote)
        # In threads: they wait for processes that ask the executor of this one.
        running = await anyio.to_thread.run_sync(api.__enter__)
        try:
            tools = await anyio.to_thread.run_sync(mcp.__enter__)
            try:
                urls = (
                    f"{running.url}/readyz",
                    tools.executor.removesuffix("/mcp") + "/healthz",
                )
                async with httpx2.AsyncClient() as http:
                    before = [(await http.get(url)).status_code for url in urls]
                    await executor.stop()
                    with anyio.fail_after(90):
                        for url in urls:
                            while (await http.get(url)).status_code != 503:  # noqa: ASYNC110 - it happens in another process
                                await anyio.sleep(0.1)
                    ready = await http.get(urls[0])
            finally:
                await anyio.to_thread.run_sync(mcp.__exit__, None, None, None)
        finally:
            await anyio.to_thread.run_sync(api.__exit__, None, None, None)

    assert before == [200, 200]
    assert ready.json()["checks"]["executor"] == "failed"
    assert f"{executor.port}" not in ready.text
