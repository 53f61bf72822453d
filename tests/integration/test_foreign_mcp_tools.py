"""Tools of foreign MCP servers: what they do, and what becomes of the caller when they break."""

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from assay.contracts.errors import ToolError, UsageError
from assay.contracts.ports import Tool
from assay.settings.load import Settings, load_settings
from assay.settings.sections import ForeignServerSettings, ToolSettings
from assay.tools.mcp import ForeignTool
from assay.wiring import open_tools
from tests.conformance.tools import TOOL_PROMISES, ToolSubject
from tests.doubles.fake_sandbox import FakeSandbox
from tests.support.eventually import eventually
from tests.support.mcp_servers import serve

PROGRAM = (sys.executable, str(Path(__file__).parents[1] / "support" / "foreign_mcp_server.py"))
BOX = FakeSandbox()


@asynccontextmanager
async def opened(
    folder: Path,
    *,
    on_notice: Callable[[str], None] = lambda _: None,
    **servers: Any,
) -> AsyncGenerator[dict[str, Tool]]:
    mcp = {name: ForeignServerSettings(**fields) for name, fields in servers.items()}
    settings = Settings(config_dir=folder, tools=ToolSettings(mcp=mcp))
    async with open_tools(settings, on_notice=on_notice) as found:
        yield {each.tool.spec.name: each.tool for each in found}


async def refusal(tool: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolError) as refused:
        await tool.call(arguments, BOX)
    return str(refused.value)


async def test_a_foreign_tool_keeps_every_promise_of_the_port(tmp_path: Path) -> None:
    async with opened(tmp_path, foreign={"command": PROGRAM}) as tools:
        subject = ToolSubject(
            tool=tools["foreign_add"], arguments={"first": 2, "second": 40}, in_sandbox=False
        )
        for promise in TOOL_PROMISES:
            await promise(subject)
        assert "42" in await tools["foreign_add"].call({"first": 2, "second": 40}, BOX)


async def test_a_tool_that_hangs_floods_fails_or_dies_costs_one_call(tmp_path: Path) -> None:
    async with opened(tmp_path, foreign={"command": PROGRAM, "timeout_s": 8.0}) as tools:
        flooded = await tools["foreign_flood"].call({}, BOX)
        failed = await tools["foreign_fail"].call({}, BOX)
        died = await refusal(tools["foreign_die"])
        after = await tools["foreign_add"].call({"first": 1, "second": 1}, BOX)

    assert len(flooded) < 13_000
    assert "characters left out" in flooded
    assert failed.startswith("the tool failed")
    assert "'foreign' went away" in died
    assert "2" in after


async def test_a_tool_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    async with opened(tmp_path, foreign={"command": PROGRAM}) as tools:
        hanging = tools["foreign_hang_up"]
        assert isinstance(hanging, ForeignTool)
        server = hanging.server
        server.settings = server.settings.model_copy(update={"timeout_s": 0.5})
        hung = await refusal(hanging)

    assert "did not answer in 0.5 s" in hung


async def test_a_server_that_cannot_be_started_is_told_and_the_others_are_there(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    async with opened(
        tmp_path,
        on_notice=told.append,
        broken={"command": (*PROGRAM, "--broken")},
        missing={"command": ("/no/such/program",)},
        nowhere={"url": "http://127.0.0.1:9/mcp"},
        good={"command": PROGRAM},
    ) as tools:
        assert "good_add" in tools
        assert "run" in tools

    assert len(told) == 3
    assert any("'broken' cannot be started: no licence found" in line for line in told)
    assert any("'missing'" in line for line in told)
    assert any("'nowhere'" in line for line in told)


async def test_a_server_gets_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with opened(
        tmp_path, foreign={"command": PROGRAM, "env": {"MINE": SecretStr("x")}}
    ) as tools:
        names = await tools["foreign_environment"].call({}, BOX)

    assert "MINE" in names
    assert "OPENAI_API_KEY" not in names


async def test_a_server_ends_with_the_session(tmp_path: Path) -> None:
    def running() -> bool:
        lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
        return any(str(tmp_path).encode() in line for line in lines)

    async with opened(tmp_path, foreign={"command": (*PROGRAM, str(tmp_path))}):
        assert running()

    assert await eventually(lambda: not running())


async def test_tools_of_a_server_over_http_work_and_its_end_is_told(tmp_path: Path) -> None:
    with serve(tmp_path, which="executor") as served:
        async with opened(tmp_path, ours={"url": served.executor, "timeout_s": 20.0}) as tools:
            python = tools["ours_sandbox_run_python"]
            answer = await python.call({"code": "print(6 * 7)"}, BOX)
            served.process.terminate()
            assert await eventually(lambda: served.process.poll() is not None)
            gone = await refusal(python, code="print()")

    assert "42" in answer
    assert "'ours'" in gone


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "either a command or a url"),
        ({"command": ["a"], "url": "http://x/mcp"}, "either a command or a url"),
        ({"url": "ftp://x"}, "http or https"),
        ({"url": "http://x/mcp", "env": {"A": "secret"}}, "env is for a command"),
        ({"command": ["a"], "approval": "perhaps"}, "approval"),
    ],
)
def test_a_server_that_is_set_up_wrongly_is_refused(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], told: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    with pytest.raises(UsageError, match=told) as refused:
        load_settings({"tools": {"mcp": {"x": fields}}})
    assert "secret" not in str(refused.value)
