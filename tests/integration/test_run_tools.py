"""Tools of the user, the project and MCP servers in runs: only approved ones are offered."""

import sys
from pathlib import Path
from typing import Any

from assay.contracts.events import ToolAnswered
from assay.contracts.goal import RunLimits, Status
from assay.settings.sections import ForeignServerSettings, ToolSettings
from tests.support.undertakings import settings_in, tell

SERVER = (sys.executable, str(Path(__file__).parents[1] / "support" / "foreign_mcp_server.py"))
TOOL = """\
name: count_words
description: Count the words of a file.
arguments:
  type: object
  properties:
    file: {type: string}
  required: [file]
run:
  argv: ["wc", "--words", "--", "{file}"]
approval: allow
"""


def calls(*each: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": given} for name, given in each]}


async def test_approved_tools_are_used_and_others_are_named(tmp_path: Path) -> None:
    own = tmp_path / "config" / "tools"
    own.mkdir(parents=True)
    (own / "count_words.yaml").write_text(TOOL)
    foreign = ForeignServerSettings(command=SERVER)
    settings = settings_in(tmp_path).model_copy(
        update={
            "config_dir": tmp_path / "config",
            "tools": ToolSettings(mcp={"foreign": foreign}, approval={"foreign_add": "allow"}),
        }
    )
    notices: list[str] = []
    answer = ("write_file", {"path": "answer.txt", "text": "42\n"})

    story = await tell(
        tmp_path,
        [
            calls(
                ("foreign_add", {"first": 2, "second": 40}),
                ("count_words", {"file": "text.txt"}),
                ("project_tool", {"file": "text.txt"}),
            ),
            calls(answer, ("done", {})),
        ],
        facts={"tool_calls": True},
        files={
            "text.txt": "one two three\n",
            ".assay/tools/mine.yaml": TOOL.replace("count_words", "project_tool"),
        },
        checks=("grep -q 42 answer.txt",),
        limits=RunLimits(attempts=1, check_timeout_s=30),
        settings=settings,
        notices=notices,
    )

    first, second = (one for one in story.of(ToolAnswered) if one.tool != "edit")
    assert (first.tool, second.tool) == ("foreign_add", "count_words")
    assert "42" in first.answer
    assert "3 text.txt" in second.answer
    assert story.outcome.status is Status.ACCEPTED
    left_out = next(line for line in notices if "a run cannot ask for approval" in line)
    assert "project_tool" in left_out
    assert "foreign_fail" in left_out
    assert "foreign_add" not in left_out
