"""What `assay doctor` says besides isolation: with cause and fix, and never a secret."""

from collections.abc import Iterable
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute

from assay.entrypoints.checkup.installed import (
    look_at_extras,
    look_at_folders,
    look_at_keys,
    look_at_toolchains,
)
from assay.entrypoints.checkup.reached import MCP_PORTS, look_at_backends, look_at_services
from assay.entrypoints.checkup.sections import look_at_everything
from assay.entrypoints.mcp.serving import PORTS
from assay.sandbox.native.diagnosis import Finding
from assay.settings import KEY_VARIABLES, Settings

KEY = "sk-a-key-nobody-may-see"


def settings_with(**sections: object) -> Settings:
    return Settings.model_validate(sections)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_keys_are_said_to_be_set_and_never_shown() -> None:
    settings = settings_with(
        models={"api_keys": {"OPENAI_API_KEY": KEY, "GROQ_API_KEY": f"{KEY} {KEY}"}}
    )

    found = by_name(look_at_keys(settings.models))

    assert list(found) == list(KEY_VARIABLES)
    assert found["OPENAI_API_KEY"].status == "ok"
    assert found["GROQ_API_KEY"].status == "failed"
    assert found["GEMINI_API_KEY"].status == "info"
    assert KEY not in repr(found)


def test_an_extra_is_there_if_all_of_it_is() -> None:
    requirements = [
        "anyio>=4",
        "pytest>=9; extra == 'agent'",
        "no-such-package>=1 ; extra == 'agent'",
        "pytest>=9; extra == 'bench'",
        "assay[agent,bench]; extra == 'all'",
    ]

    found = by_name(look_at_extras(requirements))

    assert set(found) == {"agent", "bench"}
    assert found["bench"].status == "ok"
    assert found["agent"].cause == "without no-such-package"
    assert found["agent"].fix == "pip install 'assay[agent]'"


def test_the_extras_are_those_of_the_package() -> None:
    found = by_name(look_at_extras())

    assert {"agent", "chat", "mcp", "local"} <= set(found)


def test_toolchains_are_looked_for_where_programs_would_find_them(tmp_path: Path) -> None:
    program = tmp_path / "go"
    program.write_text("")
    program.chmod(0o755)

    found = by_name(look_at_toolchains([str(tmp_path)]))

    assert (found["go"].status, found["go"].detail) == ("ok", str(program))
    assert (found["node"].status, found["node"].detail) == ("info", "without node, npm")


def test_a_folder_that_cannot_be_made_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = settings_with(state_dir=tmp_path / "file" / "state")

    found = by_name(look_at_folders(settings))

    assert found["state folder"].status == "failed"
    assert "state_dir" in found["state folder"].fix


def test_a_folder_that_is_not_made_yet_is_fine_and_stays_so(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"

    found = by_name(look_at_folders(settings_with(state_dir=folder)))

    assert found["state folder"].status == "ok"
    assert not folder.exists()


async def test_an_executor_is_knocked_at() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - of anyio, not of Django
        settings = settings_with(
            sandbox={"remote": {"addresses": [f"127.0.0.1:{port}", "127.0.0.1:1"]}}
        )

        found = by_name([finding async for finding in look_at_backends(settings.sandbox)])

    assert found[f"executor 127.0.0.1:{port}"].status == "ok"
    assert found["executor 127.0.0.1:1"].status == "missing"
    assert found["executor 127.0.0.1:1"].fix


async def test_foreign_servers_are_looked_at_without_telling_their_secrets() -> None:
    servers = {
        "here": {"command": ["sh", "-c", "x"], "env": {"TOKEN": KEY}},
        "gone": {"command": ["no-such-program"]},
        "far": {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": KEY}},
    }
    settings = settings_with(tools={"mcp": servers})

    found = by_name([finding async for finding in look_at_services(settings)])

    assert found["foreign MCP server here"].status == "ok"
    assert found["foreign MCP server gone"].status == "failed"
    assert found["foreign MCP server far"].status == "failed"
    assert "tools.mcp.far.url" in found["foreign MCP server far"].fix
    assert KEY not in repr(found)


def test_the_ports_are_those_of_the_servers() -> None:
    assert set(MCP_PORTS.values()) == set(PORTS.values())


async def test_every_section_is_there_and_says_what_would_help() -> None:
    sections = await look_at_everything(Settings())

    assert list(sections) == [
        *("keys", "models", "backends", "services", "extras", "toolchains", "folders")
    ]
    for findings in sections.values():
        for finding in findings:
            assert finding.status in {"ok", "info"} or finding.fix, finding


async def test_what_takes_too_long_is_a_finding() -> None:
    sections = await look_at_everything(Settings(), within_s=0.0)

    assert sections["models"][-1].status == "timed_out"
