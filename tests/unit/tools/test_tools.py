"""The tools on a sandbox that runs nothing: what they ask of it, and what they tell a model."""

from pathlib import PurePosixPath
from typing import Any

import pytest

from assay.contracts.errors import SandboxUnavailableError, ToolError
from assay.contracts.execution import (
    Command,
    ExecutionResult,
    OutputChunk,
    Program,
    PythonCode,
    Reason,
)
from assay.contracts.ports import Tool
from assay.contracts.workspace import project_env, project_script
from assay.tools.workspace import WORKSPACE_TOOLS
from tests.doubles.fake_sandbox import FakeFile, FakeSandbox, answer_with

TOOLS = {tool.spec.name: tool for tool in WORKSPACE_TOOLS}


def sandbox_with(**files: str | bytes) -> FakeSandbox:
    """Build a sandbox; `a_py` stands for `a.py`, `src__a_py` for `src/a.py`."""
    sandbox = FakeSandbox()
    for name, text in files.items():
        path = PurePosixPath(name.replace("__", "/").replace("_", "."))
        sandbox.files[path] = FakeFile(text if isinstance(text, bytes) else text.encode())
        sandbox.directories.update(path.parents)
    return sandbox


def sandbox_that_answers(result: ExecutionResult) -> FakeSandbox:
    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del program, sandbox
        return result

    return FakeSandbox(answer=answer)


async def ask(name: str, sandbox: FakeSandbox, **arguments: object) -> str:
    return await TOOLS[name].call(arguments, sandbox)


def test_every_tool_has_a_plain_schema() -> None:
    assert sorted(TOOLS) == ["list_files", "python", "read_file", "run", "search"]
    for tool in WORKSPACE_TOOLS:
        schema = tool.spec.parameters
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert "title" not in str(schema)
        assert all("description" in each for each in schema["properties"].values())


@pytest.mark.parametrize("tool", WORKSPACE_TOOLS, ids=lambda tool: tool.spec.name)
async def test_a_name_that_a_tool_does_not_take_is_refused(tool: Tool) -> None:
    with pytest.raises(ToolError, match=r"it takes \w+"):
        await tool.call({"colour": "red"}, FakeSandbox())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("read_file", {}, "path: field required"),
        ("read_file", {"path": 3}, "path: input should be a valid string"),
        ("read_file", {"path": "a.py", "from_line": "x"}, "from_line: input should be a valid int"),
        ("read_file", {"path": "a.py", "from_line": 0}, "from_line: input should be greater"),
        ("read_file", {"path": "a.py", "from_line": 9}, "has only 3 lines"),
        ("read_file", {"path": "a.py", "from_line": 3, "to_line": 2}, "comes after to_line"),
        ("read_file", {"path": "/etc/passwd"}, "outside the workspace"),
        ("read_file", {"path": "../a.py"}, "outside the workspace"),
        ("read_file", {"path": "a\0"}, "not a possible path"),
        ("read_file", {"path": "src"}, "is a directory"),
        ("list_files", {"path": "nowhere"}, "there is no 'nowhere'"),
        ("run", {"command": ""}, "command: string should have at least 1"),
        ("run", {"command": " "}, "the command is empty"),
        ("run", {"command": "ls", "timeout_s": -1}, "timeout_s: input should be greater"),
        ("run", {"command": "ls\0"}, "NUL"),
        ("python", {"code": "\ud800"}, "code: input should be a valid string"),
        ("search", {"pattern": "x", "path": ".."}, "outside the workspace"),
    ],
)
async def test_a_wrong_request_is_explained(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    sandbox = sandbox_with(a_py="1\n2\n3\n", src__b_py="")

    with pytest.raises(ToolError) as error:
        await TOOLS[name].call(arguments, sandbox)

    assert message in str(error.value)
    assert sandbox.programs == []


async def test_a_file_is_shown_as_it_is() -> None:
    sandbox = sandbox_with(a_py="def f():\n    return 1\n")

    shown = await ask("read_file", sandbox, path="./a.py")

    assert shown == "a.py, lines 1 to 2 of 2:\ndef f():\n    return 1"


async def test_lines_of_a_file_are_shown_with_where_to_read_on() -> None:
    sandbox = sandbox_with(a_py="".join(f"line {number}\n" for number in range(1, 1001)))

    part = await ask("read_file", sandbox, path="/app/a.py", from_line="10", to_line=11)
    whole = await ask("read_file", sandbox, path="a.py")

    assert part == "a.py, lines 10 to 11 of 1000; read on from line 12:\nline 10\nline 11"
    assert whole.startswith("a.py, lines 1 to 500 of 1000; read on from line 501:\n")
    assert whole.endswith("line 500")


async def test_a_file_of_long_lines_is_shown_in_parts() -> None:
    sandbox = sandbox_with(a_txt=f"{'x' * 5000}\n" * 50)

    shown = await ask("read_file", sandbox, path="a.txt")

    assert len(shown) < 25_000
    assert "; read on from line 12:" in shown
    assert f"\n{'x' * 2000} [...]\n" in shown


async def test_what_is_not_text_is_not_shown() -> None:
    assert await ask("read_file", sandbox_with(a_bin=b"\0\1"), path="a.bin") == (
        "a.bin is not text (2 bytes)."
    )
    assert await ask("read_file", sandbox_with(a_txt=""), path="a.txt") == "a.txt is empty."


async def test_a_file_elsewhere_is_suggested() -> None:
    with pytest.raises(ToolError, match=r"there is no 'cart\.py'; did you mean shop/cart\.py\?"):
        await ask("read_file", sandbox_with(shop__cart_py="x"), path="cart.py")


async def test_files_are_listed_with_sizes_and_without_what_nobody_wrote() -> None:
    sandbox = sandbox_with(
        a_py="abc", src__b_py="", node_modules__x_js="1", src__target__y="2", src__target__z="3"
    )
    await sandbox.make_directory(PurePosixPath("hollow"))
    sandbox.files[PurePosixPath("node_modules/x.js")] = FakeFile(b"1")
    sandbox.directories.add(PurePosixPath("node_modules"))

    assert (await ask("list_files", sandbox)).splitlines() == [
        "a.py (3 bytes)",
        "hollow/ (empty)",
        "node.modules/x.js (1 bytes)",
        "node_modules/ (1 files, not listed)",
        "src/b.py (0 bytes)",
        "src/target/ (2 files, not listed)",
    ]
    assert (await ask("list_files", sandbox, path="src/target")).splitlines() == [
        "src/target/y (1 bytes)",
        "src/target/z (1 bytes)",
    ]


async def test_many_files_are_not_all_listed() -> None:
    sandbox = sandbox_with(**{f"f{number:04}": "" for number in range(310)})

    rows = (await ask("list_files", sandbox)).splitlines()

    assert len(rows) == 301
    assert rows[-1] == "[... 10 more; list a directory below ...]"


async def test_an_empty_workspace_is_called_so() -> None:
    assert await ask("list_files", FakeSandbox()) == ". is empty."


async def test_a_command_runs_in_a_shell_within_its_time() -> None:
    sandbox = sandbox_that_answers(answer_with("out\n", stderr="err\n", exit_code=3))
    heard: list[OutputChunk] = []

    answer = await TOOLS["run"].call(
        {"command": "make test", "timeout_s": 5}, sandbox, on_output=heard.append
    )

    assert answer == "exit code 3 after 0.0 s\nstdout:\nout\nstderr:\nerr"
    assert sandbox.programs == [Command(argv=project_script("make test"), timeout_s=5)]
    assert [chunk.data for chunk in heard] == [b"out\n", b"err\n"]


async def test_a_command_gets_no_more_time_than_the_sandbox_gives() -> None:
    sandbox = FakeSandbox()

    await ask("run", sandbox, command="ls", timeout_s=3000)

    assert sandbox.programs == [Command(argv=project_script("ls"), timeout_s=60)]


async def test_python_runs_in_the_ready_interpreter() -> None:
    sandbox = FakeSandbox()

    assert await ask("python", sandbox, code="print(1)") == "exit code 0 after 0.0 s"
    assert sandbox.programs == [
        PythonCode(source=b"print(1)", filename="code.py", env=project_env())
    ]


@pytest.mark.parametrize("reason", set(Reason) - {Reason.COMPLETED})
async def test_every_way_of_ending_has_words(reason: Reason) -> None:
    sandbox = sandbox_that_answers(answer_with("so far", reason=reason))

    answer = await ask("run", sandbox, command="x")

    assert answer.endswith("after 0.0 s\nstdout:\nso far")
    assert "exit code" not in answer


async def test_long_output_is_cut_in_the_middle_and_kept_whole() -> None:
    printed = "".join(f"line {number}\n" for number in range(10_000))

    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del sandbox
        return answer_with(printed if isinstance(program, Command) else "/kept.txt\n")

    sandbox = FakeSandbox(answer=answer)

    shown = await ask("run", sandbox, command="seq")

    assert len(shown) < 13_000
    assert "stdout:\nline 0\n" in shown
    assert "\nline 9999\nThe full output (10001 lines) is in /kept.txt; look" in shown
    assert " characters left out …]\nline " in shown
    saving = sandbox.programs[1]
    assert isinstance(saving, PythonCode)
    assert saving.stdin == f"stdout:\n{printed}".encode()
    assert sandbox.files == {}


async def test_colours_and_progress_bars_are_not_shown() -> None:
    sandbox = sandbox_that_answers(answer_with("\x1b[31mred\x1b[0m\r\n10%\r50%\r100%\n"))

    assert (await ask("run", sandbox, command="x")).endswith("stdout:\nred\n100%")


async def test_a_search_is_done_by_a_program_in_the_sandbox() -> None:
    sandbox = sandbox_that_answers(answer_with("src/a.py:1: def f():\n"))

    found = await ask("search", sandbox, pattern="def (", path="/app/src")

    assert found == "src/a.py:1: def f():"
    (program,) = sandbox.programs
    assert isinstance(program, PythonCode)
    assert program.args[:2] == ("def (", "src")
    assert program.timeout_s == 20


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (answer_with(), "Nothing in . matches 'x'."),
        (
            answer_with("a:1: x\n", reason=Reason.TIMED_OUT),
            "a:1: x\n[... the search was ended early",
        ),
    ],
)
async def test_a_search_says_when_it_found_nothing_or_was_ended(
    answer: ExecutionResult, told: str
) -> None:
    assert (await ask("search", sandbox_that_answers(answer), pattern="x")).startswith(told)


async def test_a_pattern_that_is_none_is_explained() -> None:
    sandbox = sandbox_that_answers(answer_with("missing )", exit_code=3))

    with pytest.raises(ToolError, match=r"cannot be searched for in \.: missing \)"):
        await ask("search", sandbox, pattern="(")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("run", {"command": "ls"}),
        ("python", {"code": "1"}),
        ("read_file", {"path": "a"}),
        ("list_files", {}),
        ("search", {"pattern": "x"}),
    ],
)
async def test_a_lost_sandbox_is_never_an_answer(name: str, arguments: dict[str, Any]) -> None:
    sandbox = FakeSandbox(closed=True)

    with pytest.raises(SandboxUnavailableError):
        await TOOLS[name].call(arguments, sandbox)
