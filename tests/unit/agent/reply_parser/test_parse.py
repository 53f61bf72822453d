"""The protocol: native calls, its description, and replies that make no sense at all."""

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.agent.edits.apply import DeleteFile, ReplaceText, WriteFile
from assay.agent.reply_parser.parse import (
    Finish,
    ParsedReply,
    describe_protocol,
    edit_specs,
    understand_calls,
    understand_text,
)
from assay.contracts.messages import ToolCall, ToolSpec

TOOLS = frozenset({"run", "python", "read_file", "list_files", "search"})
PIECES = (
    *(
        "FILE: a.py",
        "EDIT: b/c.md",
        "DELETE: x",
        "RUN:",
        "RUN: ls",
        "PYTHON:",
        "READ: a 1-",
        "LIST:",
    ),
    *(
        "SEARCH: (",
        "DONE",
        "```",
        "```python",
        "````",
        "~~~",
        "   ```",
        "<<<<<<< SEARCH",
        "=======",
    ),
    *(
        ">>>>>>> REPLACE",
        "--- a/x",
        "+++ b/x",
        "@@ -1 +1 @@",
        "-old",
        "+new",
        "# path: y.py",
        "`z.py`",
    ),
    *(
        "",
        "x = 1",
        "def f(:",
        "...",
        "<think>",
        "</think>",
        "<tool_call>",
        "{",
        "\ud800",
        "\0",
        "\t",
    ),
)


def native(name: str, arguments: dict[str, Any] | None, *, written: str = "") -> ToolCall:
    return ToolCall(id=f"id-{name}", name=name, arguments=arguments, written=written)


def targets() -> st.SearchStrategy[PurePosixPath | None]:
    return st.sampled_from([None, *map(PurePosixPath, ("a.py", "a.json", "a.md", "a.rs"))])


@given(
    lines=st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=25),
    target=targets(),
    ended=st.booleans(),
)
def test_nothing_a_model_writes_breaks_the_reader(
    lines: list[str], target: PurePosixPath | None, *, ended: bool
) -> None:
    understood = understand_text("\n".join(lines), sole_target=target, tools=TOOLS, ended=ended)

    assert isinstance(understood, ParsedReply)
    calls = [ask.id for ask in understood.asks if isinstance(ask, ToolCall)]
    assert len(set(calls)) == len(calls)


@given(text=st.text(), target=targets())
def test_no_text_breaks_the_reader(text: str, target: PurePosixPath | None) -> None:
    assert isinstance(understand_text(text, sole_target=target, tools=TOOLS), ParsedReply)


@given(st.text(alphabet=st.characters(exclude_characters="\r", exclude_categories=["Cs"])))
def test_any_text_can_be_written_in_a_long_enough_fence(text: str) -> None:
    body = text.replace("`", "'") + "\n"

    understood = understand_text(f"FILE: a.txt\n````\n{body}````\nDONE", tools=TOOLS)

    assert understood.asks == (WriteFile(path=PurePosixPath("a.txt"), text=body), Finish())


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "line",
    [
        "```md\n```\n",
        "```x.md\n```\n",
        "<<<<<<< SEARCH\n",
        " ",
        "`",
        "```\n",
        "=",
        "FILE: ",
        "<",
        "#",
        "a/",
        "(",
        "SEARCH: x in ",
        "- ",
        "...\n",
    ],
)
def test_a_model_that_repeats_itself_is_read_in_no_time(line: str) -> None:
    text = "FILE: a.py\n```python\n" + line * 20_000 + "x"

    assert isinstance(
        understand_text(text, sole_target=PurePosixPath("a.py"), tools=TOOLS), ParsedReply
    )


def test_fences_in_fences_have_a_bottom() -> None:
    marks = ["`" * length for length in range(1000, 3, -1)]
    text = "\n".join([*(f"{mark}\nDONE" for mark in marks), *reversed(marks)])

    assert understand_text(text, tools=TOOLS).asks


def test_native_edits_are_edits() -> None:
    path = PurePosixPath("src/a.py")

    understood = understand_calls(
        (
            native("write_file", {"path": "./src/a.py", "text": "x = 1\n"}),
            native("edit_file", {"path": "/app/src/a.py", "search": "1", "replace": "2"}),
            native("delete_file", {"path": "src/a.py"}),
            native("run", {"command": "ls"}),
            native("done", {}),
        ),
        tools=TOOLS,
    )

    assert understood.asks == (
        WriteFile(path=path, text="x = 1\n"),
        ReplaceText(path=path, search="1", replace="2"),
        DeleteFile(path=path),
        native("run", {"command": "ls"}),
        Finish(),
    )
    assert understood.call_ids == (
        *("id-write_file", "id-edit_file", "id-delete_file", "id-run", "id-done"),
    )
    assert understood.problems == ()


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (native("fly", {}), "there is no tool 'fly'; there are write_file, edit_file"),
        (native("run", None, written='{"comm'), "the arguments of run are not a JSON object"),
        (native("write_file", None), "the arguments of write_file are not a JSON object"),
        (native("write_file", {"path": "a.py"}), "write_file needs text as text"),
        (native("edit_file", {"path": "a.py", "search": 1}), "needs search, replace as text"),
        (native("delete_file", {"path": "/etc/passwd"}), "the path is absolute"),
        (native("delete_file", {"path": "a/../../b"}), "`..`"),
    ],
)
def test_a_native_call_that_cannot_be_followed_is_explained(call: ToolCall, part: str) -> None:
    good = native("done", {})

    understood = understand_calls((call, good), tools=TOOLS)

    assert understood.asks == (Finish(),)
    assert understood.call_ids == (good.id,)
    (problem,) = understood.problems
    assert part in problem
    assert understood.problem_ids == (call.id,)


def test_a_tool_that_is_not_there_is_not_called() -> None:
    understood = understand_text("RUN: ls\nREAD: a.py", tools=frozenset({"read_file"}))

    assert [ask.name for ask in understood.asks if isinstance(ask, ToolCall)] == ["read_file"]
    assert understood.problems == ("RUN is not available here. You may use READ.",)


def test_what_is_said_besides_is_kept() -> None:
    text = "I will fix it.\n\nFILE: a.py\n```python\nx = 1\n```\n\nThat was it.\nDONE"

    assert understand_text(text, tools=TOOLS).prose == "I will fix it.\n\n\nThat was it."


def a_tool(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={})


def test_the_description_is_understood_by_the_reader() -> None:
    described = describe_protocol(tuple(a_tool(name) for name in TOOLS))

    understood = understand_text(described, tools=TOOLS)

    assert understood.problems == ()
    kinds = [
        ask.name if isinstance(ask, ToolCall) else type(ask).__name__ for ask in understood.asks
    ]
    assert kinds == [
        *("WriteFile", "ReplaceText", "DeleteFile"),
        *("run", "python", "read_file", "list_files", "search", "Finish", "Blocked"),
    ]


def test_only_tools_that_are_there_are_described() -> None:
    described = describe_protocol((a_tool("run"),))

    assert "RUN: " in described
    assert "READ: " not in described


def test_specs_of_edits_are_closed_objects() -> None:
    for spec in edit_specs():
        assert spec.parameters["type"] == "object"
        assert spec.parameters["additionalProperties"] is False
        assert spec.parameters["required"] == list(spec.parameters["properties"])
