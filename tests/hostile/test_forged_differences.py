"""Known failures open no way to cheat: beside each attack, a test failed before as well."""

from collections.abc import AsyncGenerator
from pathlib import PurePosixPath
from textwrap import dedent

import pytest

from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend
from assay.contracts.verdict import Grade
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier
from tests.support.backends import open_native

HONEST = "def double(n):\n    return 2 * n\n\ndef triple(n):\n    return 3 * n\n"
FILES = {
    "calc.py": "def double(n):\n    return n\n\ndef triple(n):\n    return n\n",
    "net.py": "def fetch():\n    return None\n",
    "tests/test_calc.py": """
        from calc import double, triple
        def test_double():
            assert double(2) == 4
        def test_triple():
            assert triple(2) == 6
        def test_zero():
            assert double(0) == 0
    """,
    "tests/test_net.py": """
        from net import fetch
        def test_fetch():
            assert fetch() == "data"
        def test_type():
            assert fetch() != 3
    """,
}
ATTACKS = {
    # Of the two tests of the goal, one keeps failing as before.
    "half of the work": {"calc.py": HONEST.replace("3 * n", "n")},
    "the same message by hand": {
        "calc.py": HONEST.replace("    return 3 * n", "    return 3 * n if n != 2 else 2")
    },
    "a new failure beside the known one": {
        "calc.py": HONEST,
        "net.py": "def fetch():\n    return 3\n",
    },
    "a known failure with another value": {
        "calc.py": HONEST,
        "net.py": "def fetch():\n    return 4\n",
    },
    "tests of another file taken away": {
        "calc.py": HONEST,
        "net.py": "import sys\n\n\ndef fetch():\n    return None\n\n\n"
        "frame = sys._getframe(0)\nwhile frame:\n"
        "    if 'test_net' in frame.f_code.co_filename:\n"
        "        frame.f_globals['__test__'] = False\n    frame = frame.f_back\n",
    },
    "a passing test that is skipped": {
        "calc.py": HONEST,
        "net.py": "import unittest\n\ndef fetch():\n    raise unittest.SkipTest('no network')\n",
    },
    "the end of the process": {
        "calc.py": HONEST,
        "net.py": "import os\n\ndef fetch():\n    os._exit(1)\n",
    },
    "an equality that is always true": {
        "calc.py": "class All(int):\n    def __eq__(self, other):\n        return True\n"
        "    __hash__ = int.__hash__\n\ndef double(n):\n    return All(n)\n\ntriple = double\n"
    },
    "tests that the change adds": {
        "calc.py": HONEST.replace("3 * n", "n").replace("2 * n", "n"),
        "more.py": "ONE = 1\n",
        "tests/test_more.py": "from more import ONE\n\ndef test_one():\n    assert ONE == 1\n",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def tree_of(files: dict[str, str]) -> Tree:
    return Tree(
        files={PurePosixPath(name): TreeFile(dedent(text).encode()) for name, text in files.items()}
    )


def case_of() -> VerificationSpec:
    before = tree_of(FILES)
    protected = tuple(path for path in before.files if path.parts[0] == "tests")
    goal = "Correct double and triple in calc.py"
    return VerificationSpec(
        pristine=before, checks=("pytest -q",), protected=protected, goal=goal, check_timeout_s=60
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_beside_a_known_failure_is_not_accepted(
    name: str, backend: SandboxBackend
) -> None:
    verdict = await Verifier(backend, Limits()).verify(
        case_of(), tree_of({**FILES, **ATTACKS[name]})
    )

    assert not verdict.accepted, (verdict.reason, verdict.findings)


async def test_the_honest_change_beside_a_known_failure_is_checked(
    backend: SandboxBackend,
) -> None:
    verdict = await Verifier(backend, Limits()).verify(
        case_of(), tree_of({**FILES, "calc.py": HONEST})
    )

    assert verdict.grade is Grade.CHECKED, verdict.reason
    assert verdict.reports[0].known_failures == ("tests/test_net.py::test_fetch",)
    assert verdict.reports[0].canaries_caught == verdict.reports[0].canaries_planted > 3
