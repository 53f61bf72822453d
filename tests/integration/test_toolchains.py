"""Programs of other languages in the same jail, as far as this machine has them."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from assay.contracts.execution import Command, ExecutionResult, Limits
from tests.support.native import open_own
from tests.support.requirements import require

HELLO_C = b'#include <stdio.h>\nint main(void) { puts("hello from C"); return 3; }\n'
HELLO_RUST = b'fn main() { println!("hello from Rust"); }\n'
TESTS = b"""
def test_that_holds():
    assert 6 * 7 == 42

def test_that_fails():
    assert 6 * 7 == 43
"""


async def run(
    runtime_dir: Path, script: str, files: Mapping[str, bytes] | None = None
) -> ExecutionResult:
    """Run a shell script in a workspace with some files."""
    async with (
        open_own(runtime_dir, pool_size=0) as backend,
        backend.open_sandbox(Limits(memory_mb=1024)) as sandbox,
    ):
        for name, content in (files or {}).items():
            await sandbox.write_file(PurePosixPath(name), content)
        return await sandbox.run(Command(argv=("sh", "-c", script)))


def require_program(name: str) -> None:
    require(name, available=shutil.which(name) is not None, why=f"there is no {name} here")


async def test_a_c_program_is_compiled_and_run(runtime_dir: Path) -> None:
    require_program("gcc")

    result = await run(runtime_dir, "gcc -o hello hello.c && ./hello", {"hello.c": HELLO_C})

    assert (result.stdout, result.stderr, result.exit_code) == ("hello from C\n", "", 3)


async def test_make_runs_what_a_makefile_says(runtime_dir: Path) -> None:
    require_program("make")

    result = await run(runtime_dir, "make -s", {"Makefile": b"all:\n\t@echo made\n"})

    assert (result.stdout, result.exit_code) == ("made\n", 0)


async def test_node_runs_javascript(runtime_dir: Path) -> None:
    require_program("node")

    result = await run(runtime_dir, "node -e 'console.log([3, 1, 2].sort().join())'")

    assert (result.stdout, result.exit_code) == ("1,2,3\n", 0)


async def test_a_rust_program_is_compiled_and_run(runtime_dir: Path) -> None:
    require_program("rustc")

    result = await run(runtime_dir, "rustc hello.rs && ./hello", {"hello.rs": HELLO_RUST})

    assert (result.stdout, result.exit_code) == ("hello from Rust\n", 0), result.stderr


async def test_cargo_is_there_where_rust_is(runtime_dir: Path) -> None:
    require_program("cargo")

    result = await run(runtime_dir, "cargo --version")

    assert result.stdout.startswith("cargo "), result.stderr


@pytest.mark.parametrize("shell", ["bash", "sh"])
async def test_a_shell_runs_pipes_and_loops(runtime_dir: Path, shell: str) -> None:
    require_program(shell)

    result = await run(runtime_dir, f"{shell} -c 'for n in 3 1 2; do echo $n; done | sort'")

    assert (result.stdout, result.exit_code) == ("1\n2\n3\n", 0)


async def test_pytest_of_the_environment_tests_what_is_in_the_workspace(runtime_dir: Path) -> None:
    result = await run(runtime_dir, "pytest -q -p no:cacheprovider", {"test_it.py": TESTS})

    assert result.exit_code == 1
    assert "test_that_fails - " in result.stdout
    assert "1 failed, 1 passed" in result.stdout


async def test_a_second_interpreter_is_the_same_as_the_first(runtime_dir: Path) -> None:
    script = "python3 -c 'import sys, anyio; print(sys.version_info[:3])'"

    result = await run(runtime_dir, script)

    assert (result.stdout, result.stderr) == (f"{sys.version_info[:3]}\n", "")
