"""The whole self-test as an ordinary user runs it, and what must come of it."""

import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Check
from assay.selftest.conformance import REQUIREMENTS
from assay.selftest.programs import KnownGapError
from assay.selftest.run import NOT_HERE
from assay.selftest.security_tests import ATTACKS
from tests.support.ordinary_user import OrdinaryUser
from tests.support.requirements import require

WITHIN_S = 500
"""Ten times what it takes on an idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What `assay sandbox selftest` had to say."""

    isolation: str
    failed: dict[str, str]
    """Why, by the name of the promise or attack."""
    held: frozenset[str]
    excused: frozenset[str]
    """What this machine could not give, as it turned out: packages without an index, say."""
    left: tuple[str, ...]
    """What it did not clean up."""


def run_selftest(user: OrdinaryUser, *, namespaces: bool) -> SelfTest:
    """Run both suites in one tier of the native backend.

    Raises:
        AssertionError: If it had nothing to say.
    """
    with _runtime_dir(user) as runtime_dir:
        ran = user.run(
            [str(user.python), "-m", "assay", "sandbox", "selftest", "--json"],
            env={
                "ASSAY_SANDBOX__NAMESPACES": str(namespaces).lower(),
                "ASSAY_RUNTIME_DIR": str(runtime_dir),
            },
            timeout_s=WITHIN_S,
        )
        left = tuple(path.name for path in runtime_dir.iterdir())
    assert ran.stdout, f"exit code {ran.returncode}, and no report: {ran.stderr}"
    report = json.loads(ran.stdout)
    checks = report["checks"]
    return SelfTest(
        isolation=report["isolation"],
        failed={check["name"]: check["detail"] for check in checks if check["status"] == "failed"},
        held=frozenset(check["name"] for check in checks if check["status"] == "passed"),
        excused=frozenset(
            check["name"] for check in checks if check["detail"].startswith(NOT_HERE)
        ),
        left=left,
    )


@contextmanager
def _runtime_dir(user: OrdinaryUser) -> Generator[Path]:
    # Not pytest's directory: only whoever runs the tests may enter that.
    with tempfile.TemporaryDirectory(prefix="assay-runtime-") as folder:
        os.chown(folder, user.uid, user.gid)
        yield Path(folder)


def promised_at(isolation: Isolation) -> frozenset[str]:
    """Every promise and attack that a backend of this grade must hold."""
    checks = (*REQUIREMENTS, *ATTACKS)
    return frozenset(check.name for check in checks if check.applies_to(isolation))


async def run_check(check: Check, backend: SandboxBackend) -> None:
    """Run one requirement or attack; skips what this backend or this machine cannot have."""
    if why_not := check.why_not(backend):
        pytest.skip(why_not)

    try:
        await check.run(backend)
    except KnownGapError as gap:
        require("package-index", available=False, why=str(gap))
