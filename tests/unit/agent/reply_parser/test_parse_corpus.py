"""Replies as models really write them, each with what has to come out."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pytest

from assay.agent.edits.apply import DeleteFile, ReplaceText, WriteFile
from assay.agent.reply_parser.parse import Action, Finish, understand_text
from assay.contracts.messages import ToolCall

TOOLS = frozenset({"run", "python", "read_file", "list_files", "search"})
CODE = "def f():\n    return 1\n"


def write(path: str, text: str = CODE) -> WriteFile:
    return WriteFile(path=PurePosixPath(path), text=text)


def replace(path: str, search: str, new: str) -> ReplaceText:
    return ReplaceText(path=PurePosixPath(path), search=search, replace=new)


def call(name: str, **arguments: str | int) -> tuple[str, dict[str, str | int]]:
    return (name, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A reply, and what must come of it."""

    text: str
    asks: list[Any]
    problems: list[str] = field(default_factory=list[str])
    """A part of each."""
    target: str = ""
    ended: bool = False


HUNK = "<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE"
OLD_NEW = replace("a.py", "old\n", "new\n")
TWO_HUNKS = f"{HUNK}\n\n<<<<<<< SEARCH\nx\n=======\n>>>>>>> REPLACE"
MARKDOWN = "# Title\n\n```python\nx = 1\n```\n\nMore.\n"
MARKDOWN_BARE = "# Title\n\n```\nmake\n```\n\nMore.\n"

CASES: dict[str, Case] = {
    # The forms as they are described.
    "file": Case(text=f"FILE: a.py\n```python\n{CODE}```", asks=[write("a.py")]),
    "edit": Case(text=f"EDIT: a.py\n```\n{HUNK}\n```", asks=[OLD_NEW]),
    "delete": Case(text="DELETE: a.py", asks=[DeleteFile(path=PurePosixPath("a.py"))]),
    "run": Case(text="RUN: pytest -q", asks=[call("run", command="pytest -q")]),
    "run block": Case(
        text="RUN:\n```bash\ncd src\nls\n```", asks=[call("run", command="cd src\nls")]
    ),
    "python": Case(
        text="PYTHON:\n```python\nprint(1)\n```", asks=[call("python", code="print(1)\n")]
    ),
    "read": Case(text="READ: a.py", asks=[call("read_file", path="a.py")]),
    "read lines": Case(
        text="READ: a.py 10-20", asks=[call("read_file", path="a.py", from_line=10, to_line=20)]
    ),
    "list": Case(text="LIST: src", asks=[call("list_files", path="src")]),
    "list all": Case(text="LIST:", asks=[call("list_files")]),
    "search": Case(text="SEARCH: def f", asks=[call("search", pattern="def f")]),
    "search in": Case(
        text="SEARCH: def f in src/", asks=[call("search", pattern="def f", path="src/")]
    ),
    "done": Case(text="All is well.\n\nDONE", asks=[Finish()]),
    "in order": Case(
        text=f"FILE: a.py\n```python\n{CODE}```\nRUN: python a.py\nDELETE: b.py\nDONE",
        asks=[
            write("a.py"),
            call("run", command="python a.py"),
            DeleteFile(path=PurePosixPath("b.py")),
            Finish(),
        ],
    ),
    # Where the path is.
    "path after the language": Case(
        text=f"```python src/a.py\n{CODE}```", asks=[write("src/a.py")]
    ),
    "path as the language": Case(text=f"```a.py\n{CODE}```", asks=[write("a.py")]),
    "path after a colon": Case(text=f"```python:src/a.py\n{CODE}```", asks=[write("src/a.py")]),
    "title": Case(text=f'```python title="src/a.py"\n{CODE}```', asks=[write("src/a.py")]),
    "attributes": Case(text=f"```{{.python file=a.py}}\n{CODE}```", asks=[write("a.py")]),
    "backticks above": Case(text=f"`a.py`\n\n```python\n{CODE}```", asks=[write("a.py")]),
    "bold above": Case(text=f"**a.py**:\n```python\n{CODE}```", asks=[write("a.py")]),
    "heading above": Case(text=f"### `src/a.py`\n\n```python\n{CODE}```", asks=[write("src/a.py")]),
    "colon above": Case(text=f"a.py:\n```python\n{CODE}```", asks=[write("a.py")]),
    "sentence above": Case(
        text=f"Here is the updated `a.py`:\n```python\n{CODE}```", asks=[write("a.py")]
    ),
    "File: above": Case(text=f"File: a.py\n```python\n{CODE}```", asks=[write("a.py")]),
    "comment with label": Case(text=f"```python\n# path: a.py\n{CODE}```", asks=[write("a.py")]),
    "comment": Case(text="```js\n// src/a.js\nlet x;\n```", asks=[write("src/a.js", "let x;\n")]),
    "html comment": Case(
        text="```html\n<!-- index.html -->\n<p>\n```", asks=[write("index.html", "<p>\n")]
    ),
    # How the directive is dressed.
    "bold directive": Case(text=f"**FILE: a.py**\n```python\n{CODE}```", asks=[write("a.py")]),
    "bold verb": Case(text=f"**FILE:** `a.py`\n```python\n{CODE}```", asks=[write("a.py")]),
    "heading directive": Case(text=f"## FILE: ./a.py\n```python\n{CODE}```", asks=[write("a.py")]),
    "list item": Case(text="1. RUN: `ls -l`", asks=[call("run", command="ls -l")]),
    "dollar": Case(text="RUN: $ ls", asks=[call("run", command="ls")]),
    "remark after the path": Case(
        text=f"FILE: a.py (new file)\n```python\n{CODE}```", asks=[write("a.py")]
    ),
    "words before the block": Case(
        text=f"FILE: a.py\nIt does this:\n```python\n{CODE}```", asks=[write("a.py")]
    ),
    "workspace path": Case(text=f"FILE: /app/a.py\n```python\n{CODE}```", asks=[write("a.py")]),
    "backslashes": Case(text=f"FILE: src\\a.py\n```python\n{CODE}```", asks=[write("src/a.py")]),
    "all in one fence": Case(
        text="```\nRUN: ls\nREAD: a.py\n```",
        asks=[call("run", command="ls"), call("read_file", path="a.py")],
    ),
    "run on the next line": Case(text="RUN:\npytest -q\n", asks=[call("run", command="pytest -q")]),
    "read range in brackets": Case(
        text="READ: `a.py` [3-4]", asks=[call("read_file", path="a.py", from_line=3, to_line=4)]
    ),
    "read several": Case(
        text="READ: a.py, b.py",
        asks=[call("read_file", path="a.py"), call("read_file", path="b.py")],
    ),
    "search for code with in": Case(
        text='SEARCH: "for x in y"', asks=[call("search", pattern="for x in y")]
    ),
    "done in bold": Case(text="**DONE**", asks=[Finish()]),
    "thoughts": Case(
        text=f"<think>\nFILE: b.py\n```\nx\n```\n</think>\nFILE: a.py\n```\n{CODE}```",
        asks=[write("a.py")],
    ),
    # Fences.
    "four backticks": Case(
        text=f"FILE: a.md\n````markdown\n{MARKDOWN}````", asks=[write("a.md", MARKDOWN)]
    ),
    "tildes": Case(text=f"FILE: a.py\n~~~python\n{CODE}~~~", asks=[write("a.py")]),
    "nested": Case(text=f"FILE: a.md\n```markdown\n{MARKDOWN}```", asks=[write("a.md", MARKDOWN)]),
    "nested without language": Case(
        text=f"FILE: a.md\n```\n{MARKDOWN_BARE}```\nDONE",
        asks=[write("a.md", MARKDOWN_BARE), Finish()],
    ),
    "fence in a docstring": Case(
        text='FILE: a.py\n```python\n"""Do.\n\n```\nx\n```\n"""\n```',
        asks=[write("a.py", '"""Do.\n\n```\nx\n```\n"""\n')],
    ),
    "indented block": Case(
        text="1. FILE: a.py\n   ```python\n   def f():\n       return 1\n   ```",
        asks=[write("a.py")],
    ),
    "cut off": Case(
        text="FILE: a.py\n```python\ndef f():\n    retu",
        asks=[write("a.py", "def f():\n    retu\n")],
        problems=["cut off"],
    ),
    "stopped at the closing fence": Case(
        text=f"```python\n{CODE}", asks=[write("a.py")], target="a.py", ended=True
    ),
    "cut off while running": Case(text="RUN:\n```bash\nrm -rf bui", asks=[], problems=["cut off"]),
    "closing fence forgotten before the next file": Case(
        text=f"FILE: a.py\n```python\n{CODE}FILE: b.py\n```python\n{CODE}```",
        asks=[write("a.py"), write("b.py")],
    ),
    "closing fence forgotten before done": Case(
        text=f"FILE: a.py\n```python\n{CODE}DONE", asks=[write("a.py"), Finish()]
    ),
    "cut off before the first line": Case(
        text="FILE: a.py\n```python\n", asks=[], problems=["cut off"]
    ),
    "fence on the line of the directive": Case(
        text=f"FILE: a.py ```python\n{CODE}```", asks=[write("a.py")]
    ),
    "no fence at all": Case(text=f"FILE: a.py\n{CODE}", asks=[write("a.py")]),
    # Hunks.
    "two hunks": Case(
        text=f"EDIT: a.py\n```python\n{TWO_HUNKS}\n```", asks=[OLD_NEW, replace("a.py", "x\n", "")]
    ),
    "hunks without a fence": Case(
        text=f"EDIT: a.py\n{TWO_HUNKS}\nDONE", asks=[OLD_NEW, replace("a.py", "x\n", ""), Finish()]
    ),
    "path above the fence of hunks": Case(text=f"a.py\n```python\n{HUNK}\n```", asks=[OLD_NEW]),
    "path inside the fence of hunks": Case(text=f"```python\na.py\n{HUNK}\n```", asks=[OLD_NEW]),
    "hunks under FILE": Case(text=f"FILE: a.py\n```\n{HUNK}\n```", asks=[OLD_NEW]),
    "hunks for the only target": Case(text=f"```\n{HUNK}\n```", asks=[OLD_NEW], target="a.py"),
    "hunk with a fence in it": Case(
        text="EDIT: a.md\n```\n<<<<<<< SEARCH\n```\nold\n```\n=======\nnew\n>>>>>>> REPLACE\n```",
        asks=[replace("a.md", "```\nold\n```\n", "new\n")],
    ),
    "hunk with a fence in it, in a file that has none": Case(
        text="EDIT: a.txt\n```\n<<<<<<< SEARCH\n```\nold\n```\n=======\nnew\n>>>>>>> REPLACE\n```",
        asks=[replace("a.txt", "```\nold\n```\n", "new\n")],
    ),
    "hunk without its last marker": Case(
        text="EDIT: a.py\n```\n<<<<<<< SEARCH\nold\n=======\nnew\n```", asks=[OLD_NEW]
    ),
    "underlined headings": Case(
        text="EDIT: a.rst\n```\n<<<<<<< SEARCH\nA\n=======\n=======\nB\n=======\n"
        ">>>>>>> REPLACE\n```",
        asks=[replace("a.rst", "A\n=======\n", "B\n=======\n")],
    ),
    "hunk without a divider": Case(
        text="EDIT: a.py\n```\n<<<<<<< SEARCH\nold\n>>>>>>> REPLACE\n```",
        asks=[],
        problems=["======="],
    ),
    "hunk of nothing": Case(text=f"```\n{HUNK}\n```", asks=[], problems=["names no file"]),
    "cut off inside a hunk": Case(
        text=f"EDIT: a.py\n```\n{HUNK}\n<<<<<<< SEARCH\nmore\n=====",
        asks=[OLD_NEW],
        problems=["cut off"],
    ),
    "edit without hunks": Case(
        text=f"EDIT: a.py\n```python\n{CODE}```", asks=[], problems=["Use FILE:"]
    ),
    "diff": Case(
        text="```diff\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n keep\n-old\n+new\n```",
        asks=[replace("a.py", "keep\nold\n", "keep\nnew\n")],
    ),
    "two blocks of hunks": Case(
        text=f"EDIT: a.py\n```\n{HUNK}\n```\nand\n```\n{HUNK}\n```", asks=[OLD_NEW, OLD_NEW]
    ),
    # Only one file is wanted.
    "tests beside the code": Case(
        text="```python\nimport unittest\nfrom a import f\nX = 1\nclass T(unittest.TestCase):\n"
        f"    def test_f(self):\n        self.assertEqual(f(), 1)\n```\n```python\n{CODE}```",
        asks=[write("a.py")],
        target="a.py",
    ),
    "bare block": Case(text=f"Sure!\n```python\n{CODE}```", asks=[write("a.py")], target="a.py"),
    "bare text": Case(text=CODE, asks=[write("a.py")], target="a.py"),
    "code among sentences": Case(
        text=f"Here you are:\n\n{CODE}\nThis returns one. Isn't it nice?",
        asks=[write("a.py")],
        target="a.py",
    ),
    "usage after the code": Case(
        text=f"```python\n{CODE}```\nUse it:\n```python\nprint(f(), f(), f(), f(), f())\n```\n"
        "It prints:\n```\n1 1 1 1 1\n```",
        asks=[write("a.py")],
        target="a.py",
    ),
    "install, then code": Case(
        text=f"```bash\npip install x\n```\n```python\n{CODE}```",
        asks=[write("a.py")],
        target="a.py",
    ),
    "one word is no file": Case(text="Sorry", asks=[], target="a.py"),
    "bare block and done": Case(
        text=f"```\n{CODE}```\nDONE", asks=[write("a.py"), Finish()], target="a.py"
    ),
    # What must not be taken for something else.
    "prose": Case(text="I would run the tests: `pytest`.\nRun: pytest, see README.md.", asks=[]),
    "block about another file": Case(
        text="`test_a.py` currently looks like this:\n```python\nassert f() == 2\n```",
        asks=[],
        problems=["nothing says what it is for"],
    ),
    "part of a file": Case(
        text="Add this to `main.py`:\n```python\nimport os\n```",
        asks=[],
        problems=["nothing says what it is for"],
    ),
    "shell under a file's name": Case(
        text="Then test a.py:\n```bash\npytest\n```", asks=[call("run", command="pytest")]
    ),
    "directive inside a file": Case(
        text="FILE: run.sh\n```bash\necho\nRUN: not this\n```",
        asks=[write("run.sh", "echo\nRUN: not this\n")],
    ),
    "block without a path": Case(
        text=f"```python\n{CODE}```", asks=[], problems=["nothing says what it is for"]
    ),
    "outside": Case(text="DELETE: ../a.py", asks=[], problems=["not a path inside the workspace"]),
    "file without a path": Case(text="FILE:\n```\nx\n```", asks=[], problems=["needs a path"]),
    "file without a block": Case(
        text="FILE: a.js\n\nDONE", asks=[Finish()], problems=["no fenced block"]
    ),
    "nothing to read": Case(text="READ:", asks=[], problems=["needs something"]),
    "empty": Case(text="", asks=[], target="a.py"),
    # Calls written as JSON.
    "tagged call": Case(
        text='<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>',
        asks=[call("run", command="ls")],
    ),
    "call in a fence": Case(
        text='```json\n{"name": "write_file", "arguments": {"path": "a.py", "text": "x = 1"}}\n```',
        asks=[write("a.py", "x = 1")],
    ),
    "broken tagged call": Case(
        text='<tool_call>{"name": "run", "argu', asks=[], problems=["there is no tool ''"]
    ),
}


def plain(ask: Action) -> object:
    return (ask.name, dict(ask.arguments or {})) if isinstance(ask, ToolCall) else ask


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_reply_is_understood_as_it_is_meant(case: Case) -> None:
    target = PurePosixPath(case.target) if case.target else None

    understood = understand_text(case.text, sole_target=target, tools=TOOLS, ended=case.ended)

    assert [plain(ask) for ask in understood.asks] == case.asks
    assert understood.call_ids == understood.problem_ids == ()
    assert len(understood.problems) == len(case.problems), understood.problems
    for problem, part in zip(understood.problems, case.problems, strict=True):
        assert part in problem


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_reply_with_windows_line_ends_is_understood_the_same(case: Case) -> None:
    target = PurePosixPath(case.target) if case.target else None
    written = case.text.replace("\n", "\r\n")

    understood = understand_text(written, sole_target=target, tools=TOOLS, ended=case.ended)

    assert [plain(ask) for ask in understood.asks] == case.asks
