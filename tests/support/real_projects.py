"""Real projects: fetched as source distributions, and their tests in a plain environment."""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from uv import find_uv_bin

from assay.contracts.errors import PackageError
from assay.environment.detect import detect_environment
from assay.environment.project_files import ProjectFiles
from assay.sandbox.packages.requirements import parse_requirement
from assay.sandbox.packages.resolver import IndexUnreachableError, index_environment
from assay.sandbox.packages.sources import Source, download_source, find_source
from assay.sandbox.packages.store import PackageStore
from assay.sandbox.packages.target import own_target
from tests.support.requirements import require

PYTEST = ("-q", "-rA", "-p", "no:cacheprovider", "-p", "no:randomly")
_PASSED = re.compile(r"^PASSED (.+)$", re.MULTILINE)


async def fetch_project(requirement: str, folder: Path) -> tuple[Path, Source]:
    """Download and unpack a source distribution; skips the test without a package index."""
    store = PackageStore(folder / "store", environment=os.environ, max_bytes=1 << 30)
    bench = folder / "bench"
    bench.mkdir()
    try:
        wanted = parse_requirement(requirement)
        source = await find_source(store.resolver, wanted, own_target(()), bench)
        archive = await download_source(source, os.environ, bench)
    except (PackageError, IndexUnreachableError) as error:
        require("package-index", available=False, why=str(error))
        raise
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (project,) = (folder / "unpacked").iterdir()
    # A release is no checkout: it contains built files that git ignores.
    (project / ".gitignore").unlink(missing_ok=True)
    return project, source


def passed_in_plain_environment(project: Path, source: Source, words: Sequence[str]) -> set[str]:
    """Return the tests that pass in a virtual environment with the same packages."""
    venv = project.parent / "venv"
    environment = {**os.environ, **index_environment(os.environ)}
    declared = detect_environment(ProjectFiles(project))
    wanted = project.parent / "wanted.txt"
    pins = [*declared.requirements, f"{source.name}=={source.version}", "pytest"]
    wanted.write_text("".join(f"{pin.partition(' --hash')[0]}\n" for pin in pins))
    for command in (
        ("venv", "--quiet", "--python", sys.executable, venv),
        ("pip", "install", "--quiet", "--python", venv / "bin/python", "-r", wanted),
    ):
        done = subprocess.run(
            [find_uv_bin(), *command], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    ran = subprocess.run(
        [venv / "bin/pytest", *PYTEST, *words],
        cwd=project,
        env={"PATH": path, "HOME": str(project.parent), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    return passed_tests(ran.stdout)


def passed_tests(output: str) -> set[str]:
    """Return the passed tests of the summary that pytest prints with `-rA`."""
    return set(_PASSED.findall(output))
