"""Tools declared in files: what is read, what is refused where, and how arguments reach them."""

import json
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.errors import ToolError, UsageError
from assay.contracts.execution import Command, PythonCode, Reason
from assay.tools.arguments import applicable, check_arguments
from assay.tools.discover import SHIPPED, collect, tool_files
from assay.tools.yaml_tool import load_tool
from tests.doubles.fake_sandbox import FakeSandbox, answer_with

GREP = """\
name: find_words
description: Find words in files.
arguments:
  type: object
  properties:
    words: {type: string}
    files:
      type: array
      items: {type: string}
    most: {type: integer, default: 3}
    note: {type: string}
  required: [words, files]
run:
  argv: [grep, "--max-count={most}", "--label={note}", -e, "{words}", "{files}"]
limits: {timeout_s: 5}
approval: allow
"""


REST = "name: x\ndescription: d\nrun: {argv: [a]}\n"
PROPERTY = REST + "arguments:\n  type: object\n  properties:\n    p:\n      "


def a_file(folder: Path, text: str, name: str = "tool.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


async def program_for(path: Path, **arguments: Any) -> Command | PythonCode:
    box = FakeSandbox()
    await load_tool(path).call(arguments, box)
    [program] = box.programs
    return program


async def test_arguments_are_whole_words_of_the_command_line_and_json_on_stdin(
    tmp_path: Path,
) -> None:
    path = a_file(tmp_path, GREP)

    program = await program_for(path, words="$(rm -rf /); `x` 'y'", files=["a b", "c;d"])

    assert isinstance(program, Command)
    assert program.argv == (*("grep", "--max-count=3", "-e", "$(rm -rf /); `x` 'y'", "a b", "c;d"),)
    assert json.loads(program.stdin)["most"] == 3
    assert program.timeout_s == 5


async def test_an_argument_is_not_taken_for_an_option(tmp_path: Path) -> None:
    tool = load_tool(a_file(tmp_path, GREP))
    box = FakeSandbox()

    with pytest.raises(ToolError, match="files must not begin with `-`"):
        await tool.call({"words": "x", "files": ["--include=/etc"]}, box)

    assert box.programs == []


async def test_python_gets_its_arguments_as_json_on_stdin(tmp_path: Path) -> None:
    text = "name: say\ndescription: Say.\nrun:\n  python: |\n    print(input())\n"

    program = await program_for(a_file(tmp_path, text))

    assert isinstance(program, PythonCode)
    assert (program.filename, program.stdin) == ("say.py", b"{}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1"),
        ("[]", "line 1"),
        ("name: [", "line 1"),
        ("name: x\nname: y", "line 2: the key 'name' is there twice"),
        ("a: &a [1]\nb: *a", "line 2: aliases cannot be used here"),
        ("name: !!python/object/apply:os.system [ls]", "line 1"),
        ("1: x", "line 1: the key 1 is not text"),
        ("name: Bad Name\ndescription: d\nrun: {argv: [a]}", "line 1, name:"),
        ("name: x\ndescription: d\n\nrunn: {argv: [a]}", "line 1, run: field required"),
        (REST + "colour: red", "line 4, colour:"),
        ("name: x\ndescription: d\nrun: {}", "line 3, run: give either argv or python"),
        (
            "name: x\ndescription: d\nrun:\n  argv: [a, '{b}']",
            "line 4, run.argv.1: there is no argument 'b'",
        ),
        (REST + "approval: maybe", "line 4, approval:"),
        (REST + "limits:\n  timeout_s: 0", "line 5, limits.timeout_s:"),
        (REST + "arguments:\n  type: array", "line 5, arguments.type: must be `object`"),
        (
            PROPERTY + "type: text",
            "line 8, arguments.properties.p.type:",
        ),
        (
            PROPERTY + "pattern: (a+)+$",
            "line 8, arguments.properties.p.pattern: cannot be used here",
        ),
        ("a: " * 30 + "b", "line 1"),
        ("- " * 500 + "b", "line 1"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused_with_its_name_line_and_key(
    tmp_path: Path, text: str, told: str
) -> None:
    path = a_file(tmp_path, text)

    with pytest.raises(UsageError) as refused:
        load_tool(path)

    assert str(refused.value).startswith(f"{path}, {told}")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * 70_000])
def test_what_is_no_text_or_too_long_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tool.yaml"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=r"tool\.yaml"):
        load_tool(path)


def test_every_shipped_file_is_right() -> None:
    files = tool_files(SHIPPED)

    assert files
    assert {load_tool(path).spec.name for path in files} == {path.stem for path in files}


def test_files_that_are_wrong_or_come_second_are_told_and_the_others_are_there(
    tmp_path: Path,
) -> None:
    user, project = tmp_path / "user", tmp_path / "project"
    a_file(user, GREP, "a.yaml")
    a_file(user, "name: [", "b.yaml")
    a_file(project / ".assay" / "tools", GREP, "c.yml")
    a_file(project / ".assay" / "tools", GREP.replace("find_words", "run"), "d.yaml")
    told: list[str] = []

    found = {each.tool.spec.name: each for each in collect(user, project, {}, told.append)}

    assert found["find_words"].origin == str(user / "a.yaml")
    assert found["run"].origin == "assay"
    assert "describe_table" in found
    assert len(told) == 3
    assert "b.yaml, line 1" in told[0]
    assert "'find_words' is there from" in told[1]


def test_a_project_cannot_agree_in_the_persons_name_but_the_settings_can(tmp_path: Path) -> None:
    a_file(tmp_path / ".assay" / "tools", GREP)
    nowhere = tmp_path / "nowhere"

    def approval(**approvals: Any) -> str:
        found = collect(nowhere, tmp_path, approvals, lambda _: None)
        return next(each.approval for each in found if each.tool.spec.name == "find_words")

    assert approval() == "ask"
    assert approval(find_words="allow") == "allow"
    assert approval(find_words="deny") == "deny"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (Reason.TIMED_OUT, "its time was up"),
        (Reason.OUTPUT_LIMIT, "printed too much"),
        (Reason.OUT_OF_MEMORY, "used up its memory"),
        (Reason.COULD_NOT_START, "could not be started"),
    ],
)
async def test_a_tool_that_hangs_floods_or_dies_is_an_answer(
    tmp_path: Path, reason: Reason, told: str
) -> None:
    box = FakeSandbox(answer=lambda *_: answer_with("so far", reason=reason))

    answer = await load_tool(a_file(tmp_path, GREP)).call({"words": "x", "files": []}, box)

    assert told in answer
    assert "so far" in answer


def test_of_a_foreign_schema_what_could_hang_or_fetch_is_not_applied() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "(a+)+$"},
            "b": {"$ref": "http://127.0.0.1:9/schema.json"},
            "c": {"oneOf": [{"$ref": "#/$defs/X"}, {"$ref": "#/$defs/Y"}]},
        },
        "required": ["a"],
    }

    applied = applicable(schema)
    check_arguments("x", applied, {"a": "a" * 40 + "!", "b": 1, "c": 2})

    with pytest.raises(ToolError, match="a: 3 is not of type 'string'"):
        check_arguments("x", applied, {"a": 3})
    with pytest.raises(ToolError, match="d"):
        check_arguments("x", applied, {"a": "", "d": 1})
