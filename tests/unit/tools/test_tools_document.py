"""The reference of tools shows what can be loaded."""

import re
import tomllib
from pathlib import Path

from assay.settings.sections import ForeignServerSettings, ToolSettings
from assay.tools.yaml_tool import load_tool
from tests.support.sources import ROOT

TEXT = (ROOT / "docs" / "reference" / "tools.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_tool_in_the_document_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tool.yaml"
    path.write_text(block("yaml"))

    assert load_tool(path).spec.name == "count_words"


def test_the_servers_in_the_document_are_settings() -> None:
    settings = ToolSettings.model_validate(tomllib.loads(block("toml"))["tools"])

    assert set(settings.mcp) == {"files", "tickets"}
    assert "Bearer" not in repr(settings)


def test_every_setting_is_in_the_document() -> None:
    table = TEXT.partition("## Settings")[2]

    for name in ForeignServerSettings.model_fields:
        assert re.search(rf"[.`]{name}`", table)
