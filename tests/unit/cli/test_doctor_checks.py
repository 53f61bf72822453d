"""What `assay doctor` says besides isolation: with cause and fix, and never a secret."""

from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute

from assay.bench.toolchains.go import GoToolchain
from assay.cli.doctor_checks import (
    MCP_PORTS,
    look_at_backends,
    look_at_everything,
    look_at_extras,
    look_at_folders,
    look_at_keys,
    look_at_services,
    look_at_toolchains,
)
from assay.mcp.serve import PORTS
from assay.sandbox.native.doctor.explain import Finding
from assay.settings.load import KEY_VARIABLES, ModelSettings, Settings, load_settings

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
        "assay-agent[agent,bench]; extra == 'all'",
    ]

    found = by_name(look_at_extras(requirements))

    assert set(found) == {"agent", "bench"}
    assert found["bench"].status == "ok"
    assert found["agent"].cause == "without no-such-package"
    assert found["agent"].fix == "pip install 'assay-agent[agent]'"
    assert found["agent"].status == "info"


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


def test_the_file_for_keys_is_the_one_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    first, *_ = look_at_keys(ModelSettings())

    assert str(tmp_path / "assay" / "credentials.toml") in first.fix


def test_the_files_that_are_read_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ASSAY_CONFIG", raising=False)
    path = tmp_path / "assay" / "config.toml"

    assert (
        by_name(look_at_folders(Settings()))["settings file"].detail == f"none; it would be {path}"
    )

    path.parent.mkdir()
    path.write_text("")
    found = by_name(look_at_folders(Settings()))
    assert (found["settings file"].status, found["settings file"].detail) == ("ok", str(path))
    assert str(path.with_name("credentials.toml")) in found["credentials"].detail


def test_doctor_runs_and_benchmarks_find_the_same_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    program = tmp_path / "assay" / "bench" / "toolchains" / "go" / "go" / "bin" / "go"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)

    assert by_name(look_at_toolchains(load_settings().sandbox.search_path))["go"].status == "info"

    (program.parents[2] / "compiled").touch()
    settings = load_settings()
    assert by_name(look_at_toolchains(settings.sandbox.search_path))["go"].detail == str(program)
    assert GoToolchain().find(settings).search_path == (str(program.parent),)
    assert settings.sandbox.search_path[0] == str(program.parent)
