"""Real projects: tests that pass in a plain environment pass in a sandbox with `--env auto`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread

from tests.support.real_projects import (
    PYTEST,
    fetch_project,
    passed_in_plain_environment,
    passed_tests,
)

ASSAY = (sys.executable, "-m", "assay")
EXCEPTIONS: dict[str, dict[str, str]] = {
    "flask": {"tests/test_cli.py::test_load_dotenv": "its `.env` is withheld from the sandbox"},
}
"""Tests that pass in a plain environment only, by project, with the reason."""


def run_in_sandbox(project: Path, words: list[str], folder: Path) -> dict[str, str]:
    """Run pytest as a user would, and return the fields of the result."""
    limits = ("--timeout", "120", "--memory-mb", "1024", "--disk-mb", "512")
    options = ("--workspace", project, "--env", "auto", "--json", *limits)
    ran = subprocess.run(
        [*ASSAY, "sandbox", "run", *options, "--", "pytest", *PYTEST, *words],
        env={
            **os.environ,
            "ASSAY_RUNTIME_DIR": str(folder / "runtime"),
            "ASSAY_SANDBOX__PACKAGES_DIR": str(folder / "packages"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ("tabulate", ["test/test_input.py", "test/test_cli.py"]),
        ("humanize", ["tests/test_number.py", "tests/test_filesize.py"]),
        ("click", ["tests/test_basic.py", "tests/test_commands.py", "tests/test_imports.py"]),
        ("attrs", ["tests/test_setattr.py", "tests/test_packaging.py", "tests/test_filters.py"]),
        ("flask", ["tests/test_basic.py", "tests/test_cli.py"]),
        ("python-dotenv", ["tests/test_main.py", "tests/test_cli.py"]),
        ("boltons", ["tests/test_iterutils.py", "tests/test_strutils.py"]),
        ("marshmallow", ["tests/test_fields.py"]),
    ],
)
async def test_tests_that_pass_in_a_plain_environment_pass_in_a_sandbox(
    requirement: str, words: list[str], tmp_path: Path
) -> None:
    project, source = await fetch_project(requirement, tmp_path)
    words = [word for word in words if (project / word).exists()]
    assert words, sorted(path.name for path in project.glob("test*/*"))

    result = await to_thread.run_sync(run_in_sandbox, project, words, tmp_path)
    in_sandbox = passed_tests(result["stdout"])
    plain = await to_thread.run_sync(passed_in_plain_environment, project, source, words)

    missing = plain - in_sandbox - EXCEPTIONS.get(requirement, {}).keys()
    assert plain
    assert not missing, result["stdout"][-3000:] + result["stderr"]
