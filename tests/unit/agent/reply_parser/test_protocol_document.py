"""The examples of the protocol's page do what the page says."""

import re
from pathlib import PurePosixPath
from typing import assert_never

import pytest

from assay.agent.edits.apply import DeleteFile, ReplaceText, WriteFile
from assay.agent.reply_parser.parse import Action, Blocked, Finish, Patch, understand_text
from assay.contracts.messages import ToolCall
from assay.tools.workspace import WORKSPACE_TOOLS
from tests.support.sources import ROOT

TEXT = (ROOT / "docs" / "reference" / "protocol.md").read_text()
EXAMPLE = re.compile(
    r"^`{5}reply ?(?P<target>\S*)\n(?P<reply>.*?)^`{5}\n\nAsks for: (?P<asks>[^\n]*)$",
    re.DOTALL | re.MULTILINE,
)
EXAMPLES = list(EXAMPLE.finditer(TEXT))
TOOLS = frozenset(tool.spec.name for tool in WORKSPACE_TOOLS)


def describe(ask: Action) -> str:
    match ask:
        case WriteFile():
            return f"write {ask.path}"
        case ReplaceText():
            return f"replace in {ask.path}"
        case DeleteFile():
            return f"delete {ask.path}"
        case ToolCall():
            return ask.name
        case Finish():
            return "done"
        case Blocked():
            return "blocked"
        case Patch():
            return "patch"
        case _:
            assert_never(ask)


def test_every_example_says_what_it_asks_for() -> None:
    assert len(EXAMPLES) == len(re.findall(r"^`{5}reply", TEXT, re.MULTILINE)) > 0


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["asks"])
def test_an_example_asks_for_what_the_page_says(example: re.Match[str]) -> None:
    target = PurePosixPath(example["target"]) if example["target"] else None

    understood = understand_text(example["reply"], sole_target=target, tools=TOOLS)

    assert ", ".join(map(describe, understood.asks)) == example["asks"]
    assert understood.problems == ()


def test_the_page_names_every_tool() -> None:
    assert [name for name in sorted(TOOLS) if f"| `{name}` |" not in TEXT] == []
