"""The tools in a real sandbox."""

from collections.abc import AsyncGenerator
from pathlib import PurePosixPath

import anyio
import pytest

from assay.contracts.errors import ToolError
from assay.contracts.execution import Limits
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.tools.workspace import WORKSPACE_TOOLS
from tests.support.backends import TIERS, Tier, open_native

TOOLS = {tool.spec.name: tool for tool in WORKSPACE_TOOLS}


@pytest.fixture(scope="module", params=TIERS)
async def backend(request: pytest.FixtureRequest) -> AsyncGenerator[SandboxBackend]:
    tier: Tier = request.param
    async with open_native(tier) as backend:
        yield backend


@pytest.fixture
async def sandbox(backend: SandboxBackend) -> AsyncGenerator[Sandbox]:
    async with backend.open_sandbox(Limits(wall_s=20, cpu_s=10)) as sandbox:
        for path, text in (
            ("a.py", "def f():\n    return 1\n"),
            ("src/b.py", "from a import f\n\nprint(f())\n"),
            ("src/c.bin", "\0def\n"),
            (".git/x", "def\n"),
        ):
            await sandbox.write_file(PurePosixPath(path), text.encode())
        yield sandbox


async def ask(name: str, sandbox: Sandbox, **arguments: object) -> str:
    with anyio.fail_after(60):
        return await TOOLS[name].call(arguments, sandbox)


async def test_a_search_finds_lines_and_leaves_out_what_nobody_wrote(sandbox: Sandbox) -> None:
    assert await ask("search", sandbox, pattern=r"\bf\(") == (
        "a.py\n1:def f():\n\nsrc/b.py\n3:print(f())"
    )
    assert await ask("search", sandbox, pattern="def", path="a.py") == "a.py\n1:def f():"
    assert (
        await ask("search", sandbox, pattern="def", path="src") == "Nothing in src matches 'def'."
    )


async def test_a_search_keeps_indentation_and_shows_context(sandbox: Sandbox) -> None:
    text = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"
    await sandbox.write_file(PurePosixPath("src/deep/c.py"), text.encode())

    found = await ask("search", sandbox, pattern="return", path="src", context=1)

    assert found == (
        "src/deep/c.py\n2-    def f(self):\n3:        return 1\n4-\n5-    def g(self):\n"
        "6:        return 2"
    )


@pytest.mark.parametrize(
    ("glob", "files"),
    [
        ("*.py", ["a.py", "src/b.py"]),
        ("src/**/*.py", ["src/b.py"]),
        ("src", ["src/b.py", "src/b.ts"]),
        ("*.{ts,tsx}", ["src/b.ts"]),
        ("!*.py", ["src/b.ts"]),
    ],
)
async def test_a_glob_selects_the_files_of_a_search(
    sandbox: Sandbox, glob: str, files: list[str]
) -> None:
    await sandbox.write_file(PurePosixPath("src/b.ts"), b"f()\n")

    found = await ask("search", sandbox, pattern=r"f\(", glob=glob)

    assert [line for line in found.splitlines() if line and not line[0].isdigit()] == files


async def test_a_search_counts_what_it_leaves_out(sandbox: Sandbox) -> None:
    for number in range(3):
        path = PurePosixPath(f"many/{number}.txt")
        await sandbox.write_file(path, b"needle\n" * 60)

    found = await ask("search", sandbox, pattern="needle")

    assert found.count(":needle") == 100
    assert found.endswith(
        "[... 80 more lines in 2 files match: search for less, or in a folder or glob ...]"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": "("}, "missing ), unterminated subpattern"),
        ({"pattern": "x", "path": "nowhere"}, "there is no 'nowhere'"),
    ],
)
async def test_a_search_that_cannot_be_done_is_explained(
    sandbox: Sandbox, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(ToolError) as error:
        await ask("search", sandbox, **arguments)

    assert message in str(error.value)


async def test_a_pattern_that_takes_for_ever_is_ended(backend: SandboxBackend) -> None:
    async with backend.open_sandbox(Limits(wall_s=3, cpu_s=2)) as sandbox:
        await sandbox.write_file(PurePosixPath("a"), b"first\n" + b"a" * 60 + b"!\n")

        found = await ask("search", sandbox, pattern="first|^(a+)+$")

    assert found.startswith("a\n1:first\n[... the search was ended early")


async def test_a_command_runs_where_the_files_are(sandbox: Sandbox) -> None:
    answer = await ask("run", sandbox, command="cd src && cat b.py | wc -l; echo oops >&2; exit 4")

    assert answer.startswith("exit code 4 after ")
    assert answer.endswith("\nstdout:\n3\nstderr:\noops")


async def test_python_sees_the_files(sandbox: Sandbox) -> None:
    answer = await ask("python", sandbox, code="print(open('a.py').read())")

    assert answer.endswith("stdout:\ndef f():\n    return 1")


async def test_the_full_text_of_long_output_can_be_read_afterwards(sandbox: Sandbox) -> None:
    shown = await ask("run", sandbox, command="seq 100000 199999")
    path = shown.rpartition(" is in ")[2].partition(";")[0]

    part = await ask("run", sandbox, command=f"sed -n 50001p {path}")

    assert "150000" not in shown
    assert part.endswith("stdout:\n149999")
    assert "assay-output" not in await ask("list_files", sandbox)


async def test_a_command_that_takes_too_long_tells_what_it_printed(sandbox: Sandbox) -> None:
    answer = await ask("run", sandbox, command="echo begun; sleep 60", timeout_s=1)

    assert answer.startswith("ended because its time was up, after ")
    assert answer.endswith("stdout:\nbegun")


async def test_files_are_read_and_listed(sandbox: Sandbox) -> None:
    assert (await ask("list_files", sandbox)).splitlines() == [
        ".git/ (1 files, not listed)",
        "a.py (22 bytes)",
        "src/b.py (28 bytes)",
        "src/c.bin (5 bytes)",
    ]
    assert await ask("read_file", sandbox, path="a.py", from_line=2) == (
        "a.py, lines 2 to 2 of 2:\n    return 1"
    )


async def test_a_src_layout_is_importable_for_the_model_in_every_folder(sandbox: Sandbox) -> None:
    await sandbox.write_file(PurePosixPath("src/mdurl/__init__.py"), b"where = 'the workspace'\n")
    code = "import mdurl; print(mdurl.where)"

    for answer in (
        await ask("python", sandbox, code=code),
        await ask("run", sandbox, command=f"cd src/mdurl && python3 -c '{code}'"),
    ):
        assert "stdout:\nthe workspace" in answer
