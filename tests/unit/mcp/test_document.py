"""The reference of the MCP servers says what the programs do."""

import json
import re
from typing import Any

from assay.mcp.client_configs import ClientName, command_line, configuration
from assay.mcp.tools import FILE_TOOLS, PROGRAM_TOOLS
from assay.settings.sections import McpSettings
from tests.support.sources import ROOT

TEXT = (ROOT / "docs" / "reference" / "mcp.md").read_text()
WRITTEN_PATH = "/path/to/bin/assay"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def with_a_general_path(client: ClientName) -> str:
    program = command_line()[0]
    return configuration(client).replace(program, WRITTEN_PATH)


def test_configurations_in_the_document_are_those_that_are_printed() -> None:
    shown: list[dict[str, Any]] = [json.loads(block) for block in blocks("json")]

    assert shown[0] == json.loads(with_a_general_path("claude-desktop"))
    assert shown[0] == json.loads(with_a_general_path("cursor"))
    assert shown[1] == json.loads(with_a_general_path("vscode"))
    printed = with_a_general_path("openai-agents")
    assert printed.startswith(blocks("python")[0])


def test_every_setting_is_in_the_document() -> None:
    table = TEXT.partition("## Settings")[2].partition("## Clients")[0]

    assert set(re.findall(r"`(\w+)`", table)) >= set(McpSettings.model_fields)


def test_every_tool_is_in_the_document() -> None:
    for tool in (*FILE_TOOLS, *PROGRAM_TOOLS):
        row = next(line for line in TEXT.splitlines() if f"`{tool.spec.name}`" in line)
        for name in tool.arguments.model_fields:
            assert name == "workspace" or f"`{name}`" in row
