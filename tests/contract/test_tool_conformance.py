"""Every tool for work on a sandbox keeps every promise of the port, in code and in files."""

from pathlib import PurePosixPath
from typing import Any

import pytest

from assay.tools.discover import SHIPPED, tool_files
from assay.tools.workspace import WORKSPACE_TOOLS
from assay.tools.yaml_tool import load_tool
from tests.conformance.tools import TOOL_PROMISES, ToolPromise, ToolSubject
from tests.doubles.fake_sandbox import FakeFile, FakeSandbox

ASKED: dict[str, dict[str, Any]] = {
    "run": {"command": "true"},
    "python": {"code": "print(1)"},
    "read_file": {"path": "a.py"},
    "list_files": {"path": "."},
    "search": {"pattern": "a"},
    "describe_table": {"path": "a.csv"},
    "compare_files": {"old": "a.py", "new": "b.py"},
}


def a_workspace() -> FakeSandbox:
    return FakeSandbox(files={PurePosixPath("a.py"): FakeFile(b"a = 1\n")})


SUBJECTS = [
    ToolSubject(tool=tool, arguments=ASKED[tool.spec.name], open_sandbox=a_workspace)
    for tool in (*WORKSPACE_TOOLS, *(load_tool(path) for path in tool_files(SHIPPED)))
]


@pytest.mark.parametrize("promise", TOOL_PROMISES, ids=lambda promise: promise.name)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.tool.spec.name)
async def test_tool_keeps(promise: ToolPromise, subject: ToolSubject) -> None:
    await promise(subject)
