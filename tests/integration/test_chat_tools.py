"""Tools of one's own in a conversation: used when allowed, and no harm when they break."""

import json
import sys
from pathlib import Path

from assay.chat.open_session import open_chat_session, open_resources
from assay.contracts.chat import ChatEvent, ToolAsk, ToolUsed
from assay.settings.load import SandboxSettings, Settings
from assay.settings.sections import ForeignServerSettings, ToolSettings
from assay.storage.chat_store import SessionStore

FOREIGN = (sys.executable, str(Path(__file__).parents[1] / "support" / "foreign_mcp_server.py"))


CALLS = ("greet", "foreign_die", "foreign_add", "foreign_fail")


def a_project(folder: Path) -> None:
    tools = folder / ".assay" / "tools"
    tools.mkdir(parents=True)
    (tools / "a.yaml").write_text(
        "name: greet\ndescription: Greet.\nrun: {argv: [echo, hello]}\napproval: allow\n"
    )
    (tools / "b.yaml").write_text("name: [")


def a_model(folder: Path) -> str:
    arguments = {"foreign_add": {"first": 40, "second": 2}}
    calls = [[{"name": name, "arguments": arguments.get(name, {})}] for name in CALLS]
    lines = [*({"tool_calls": call} for call in calls), {"text": "That was it."}]
    path = folder / "script.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return f"scripted:{path}"


def with_servers(folder: Path, runtime_dir: Path) -> Settings:
    foreign = ForeignServerSettings(command=FOREIGN, approval="allow")
    missing = ForeignServerSettings(command=("/no/such/program",))
    return Settings(
        sandbox=SandboxSettings(preload=(), pool_size=0, runtime_dir=runtime_dir),
        tools=ToolSettings(mcp={"foreign": foreign, "missing": missing}),
        config_dir=folder / "config",
        state_dir=folder / "state",
    )


async def test_a_conversation_goes_on_whatever_its_tools_do(
    tmp_path: Path, runtime_dir: Path
) -> None:
    a_project(tmp_path)
    settings = with_servers(tmp_path, runtime_dir)
    used: list[ToolUsed] = []
    asked: list[str] = []
    told: list[str] = []

    def hear(event: ChatEvent) -> None:
        if isinstance(event, ToolUsed):
            used.append(event)

    async def approve(ask: ToolAsk) -> bool:
        asked.append(ask.tool)
        return True

    session = SessionStore(settings.state_dir).create()
    async with open_chat_session(
        session,
        settings,
        open_resources(settings, project=tmp_path, on_notice=told.append),
        model=a_model(tmp_path),
        listeners=(hear,),
        approve=approve,
    ) as chat:
        ended = await chat.say("Use your tools.")

    assert ended.status == "answered"
    assert [event.tool for event in used] == list(CALLS)
    # What a project's file says of itself does not count; what the settings say of a server does.
    assert asked == ["greet"]
    assert len(told) == 2
    greeted, died, added, failed = (event.answer for event in used)
    assert "hello" in greeted
    assert "went away" in died
    assert "42" in added
    assert "the tool failed" in failed
