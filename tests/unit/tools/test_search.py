"""The search program, with and without ripgrep: both must give the same answer."""

import re
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from assay.tools.search import PROGRAM, QUIET_DIRECTORIES
from tests.support.requirements import require

FILES = {
    "a.py": b"def first():\n    return 'x'\r\n",
    "src/z/last/b.py": b"first\n",
    "src/deep/b.py": b"import a\n\n\nclass Second:\n\tdef first(self): pass\n",
    "src/windows.txt": b"first\r\nlast\r\n",
    "node_modules/m/index.js": b"first\n",
    ".hidden/c.py": b"first\n",
    "data.bin": b"\0first\n",
    "latin.txt": b"first caf\xe9\n",
    "empty.txt": b"",
    "--odd name": b"first\n",
}
PATTERNS = (
    *("first", "^first$", r"\bfirst\(", "(?i)FIRST", "^$", "x'$", r"\s+def", "first|last"),
    *(r"a(?=b)", "caf", "[a-z]+:", r"\Afirst", r"last\Z", "nothing like this", "{", r"\<first"),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


async def run_search(tree: Path, pattern: str, *, path: str, root: str = ".") -> str:
    arguments = (pattern, root, "", "0", ",".join(sorted(QUIET_DIRECTORIES)))
    with anyio.fail_after(60):
        result = await anyio.run_process(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=tree, env={"PATH": path}, check=False
        )
    assert not result.stderr
    return result.stdout.decode()


async def test_quiet_directories_and_binary_files_are_left_out(tree: Path) -> None:
    found = await run_search(tree, "first", path="")

    assert ".hidden/c.py" in found
    assert "node_modules" not in found
    assert "data.bin" not in found


async def test_a_named_quiet_directory_is_searched(tree: Path) -> None:
    assert "index.js" in await run_search(tree, "first", path="", root="node_modules/m")


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_ripgrep_changes_nothing_but_the_speed(tree: Path, pattern: str) -> None:
    ripgrep = shutil.which("rg")
    require("ripgrep", available=ripgrep is not None, why="ripgrep is not installed")
    folder = str(Path(str(ripgrep)).parent)

    found = await run_search(tree, pattern, path=folder)
    assert found == await run_search(tree, pattern, path="")


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_search_finds_the_same_as_one_line_after_another(tree: Path, pattern: str) -> None:
    wanted: list[str] = []
    for name in sorted(set(FILES) - {"node_modules/m/index.js", "data.bin"}):
        lines = FILES[name].decode(errors="replace").replace("\r\n", "\n").split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        wanted += [line for line in lines if re.search(pattern, line)]

    found = await run_search(tree, pattern, path="")

    rows = [line for line in found.splitlines() if line[:1].isdigit()]
    assert sorted(row.partition(":")[2] for row in rows) == sorted(wanted)
