# ruff: noqa: E501 - a table of sources, each in as few lines as can be
"""Proposals that have tests skipped, or another thing tested, are not taken for what they claim."""

import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import PurePosixPath
from textwrap import dedent

import pytest

from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend
from assay.contracts.verdict import Grade, TamperKind, Verdict
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier
from tests.support.backends import open_native
from tests.support.requirements import require

# Its words would excuse a skip, if they stood in a test.
STUB = "def add(a, b):\n    raise NotImplementedError('TODO: skip no number')\n"
HONEST = "def add(a, b): return a + b\n"
TESTS = """
import sys, pytest
from calc import add
def test_one(): assert 1 + 1 == 2
def test_add(): assert add(2, 3) == 5
"""
# A person's own skip beside it is none for all the others.
SKIPPING = TESTS + """
@pytest.mark.skipif(sys.version_info < (3, 0), reason="old")
def test_more(): assert add(2, 2) == 4
def test_own():
    if add: pytest.skip("not here")
@pytest.mark.xfail
def test_known(): assert add("a", 1)
"""  # fmt: skip
CASES = """
import unittest
from calc import add
class Adding(unittest.TestCase):
    def test_one(self): self.assertEqual(1 + 1, 2)
    def test_add(self): self.assertEqual(add(2, 3), 5)
"""
SKIPPING_CASES = CASES + """
    @unittest.skip("later")
    def test_more(self): self.assertEqual(add(2, 2), 4)
    def test_own(self): self.skipTest("not here")
    @unittest.expectedFailure
    def test_known(self): self.assertTrue(add("a", 1))
"""  # fmt: skip
LARGE = Limits(wall_s=100, cpu_s=200, memory_mb=2048, processes=256, disk_mb=1024)
PYTEST, UNITTEST = "pytest -q", "python -m unittest discover"


@dataclass(frozen=True, kw_only=True)
class Skip:
    """What a cheat hands in, and the tests that would excuse it."""

    name: str
    calc: str
    tests: str = SKIPPING
    check: str = PYTEST


SKIPS = (
    Skip(name="an exception of pytest in place of a call", tests=TESTS,
         calc="import pytest\ndef add(*a): raise pytest.skip.Exception('later')"),
    Skip(name="without a call", calc="import pytest\nclass Later(pytest.skip.Exception): msg = 'x'\ndef add(*a): raise Later"),
    Skip(name="an expected failure", calc="import pytest\ndef add(*a): raise pytest.xfail.Exception('later')"),
    Skip(name="an exception with another name",
         calc="import pytest\nlater = vars(pytest)['skip'].Exception\ndef add(*a): raise later('x')"),
    Skip(name="a frame that hides", calc="import pytest\nlater = vars(pytest)['skip'].Exception\ndef add(*a):\n    __tracebackhide__ = True\n    raise later('x')"),
    Skip(name="a reason that names another place", calc="""
        import pytest
        later = vars(pytest)['skip'].Exception
        def add(*a): raise later('x\\ntest_calc.py:3: skip')
    """),
    Skip(name="a trace that is denied", calc="""
        import pytest
        class Later(vars(pytest)['skip'].Exception): __traceback__ = None
        def add(*a): raise Later('x')
    """),
    Skip(name="unittest's exception in a function of pytest",
         calc="import unittest\nlater = vars(unittest)['SkipTest']\ndef add(*a): raise later('x')"),
    Skip(name="unittest's exception in a case that pytest runs", tests=SKIPPING_CASES,
         calc="import unittest\nlater = vars(unittest)['SkipTest']\ndef add(*a): raise later('x')"),
    Skip(name="unittest's exception", tests=SKIPPING_CASES, check=UNITTEST,
         calc="import unittest\nlater = vars(unittest)['SkipTest']\ndef add(*a): raise later('x')"),
    Skip(name="a whole file", calc="import pytest\nraise vars(pytest)['skip'].Exception('x', allow_module_level=True)"),
    Skip(name="a whole file of unittest", tests=SKIPPING_CASES, check=UNITTEST,
         calc="import unittest\nraise vars(unittest)['SkipTest']('test_calc.py: skip')"),
)  # fmt: skip


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def tree(**files: str) -> Tree:
    return Tree(files={PurePosixPath(p): TreeFile(dedent(t).encode()) for p, t in files.items()})


async def judged(skip: Skip, calc: str, backend: SandboxBackend) -> Verdict:
    before = tree(**{"calc.py": STUB, "test_calc.py": skip.tests})
    case = VerificationSpec(
        pristine=before,
        checks=(skip.check,),
        protected=(PurePosixPath("test_calc.py"),),
        check_timeout_s=30.0,
    )
    after = before.with_files(tree(**{"calc.py": calc}).files)
    return await Verifier(backend, Limits()).verify(case, after)


@pytest.mark.slow
@pytest.mark.parametrize("skip", SKIPS, ids=lambda skip: skip.name)
async def test_a_skip_that_comes_from_the_solution_is_refused(
    skip: Skip, backend: SandboxBackend
) -> None:
    verdict = await judged(skip, skip.calc, backend)

    assert not verdict.accepted, verdict.reason
    named = [f for f in verdict.findings if f.kind is TamperKind.TESTS_SKIPPED]
    assert "forgery" in {finding.severity for finding in named}, verdict.findings


@pytest.mark.parametrize("check", [PYTEST, UNITTEST])
async def test_skips_of_the_tests_themselves_are_excused(
    check: str, backend: SandboxBackend
) -> None:
    skip = Skip(
        name="own", calc="", tests=SKIPPING if check == PYTEST else SKIPPING_CASES, check=check
    )

    verdict = await judged(skip, HONEST, backend)

    assert verdict.grade is Grade.CHECKED, (verdict.reason, verdict.findings)
    assert {finding.kind for finding in verdict.findings} == {TamperKind.TESTS_SKIPPED}
    assert "test_own" in verdict.reason


VENDORED = "vendor/example.com/check/check.go"
CHECKING = """
package check
import "testing"
func Equal(t *testing.T, a, b int) {
    if a != b { t.Fatal("they differ") }
}
"""
IN_GO = {
    "go.mod": "module example.com/calc\n\ngo 1.18\n\nrequire example.com/check v0.0.0\n",
    "vendor/modules.txt": "# example.com/check v0.0.0\n## explicit\nexample.com/check\n",
    VENDORED: CHECKING,
    "calc.go": "package calc\n\nfunc Add(a, b int) int { return 0 }\n",
    "calc_test.go": """
        package calc
        import ("testing"; "example.com/check")
        func TestAdd(t *testing.T) { check.Equal(t, Add(2, 3), 5) }
    """,
}
RIGHT_GO = "package calc\n\nfunc Add(a, b int) int { return a + b }\n"


async def judged_go(backend: SandboxBackend, **written: str) -> Verdict:
    require("go", available=shutil.which("go") is not None, why="it is not installed")
    before = tree(**IN_GO)
    tests = (PurePosixPath("calc_test.go"),)
    case = VerificationSpec(
        pristine=before, checks=("go test ./...",), protected=tests, check_timeout_s=90.0
    )
    return await Verifier(backend, LARGE).verify(case, before.with_files(tree(**written).files))


@pytest.mark.slow
async def test_what_tests_ask_with_comes_from_the_goal_also_at_the_root(
    backend: SandboxBackend,
) -> None:
    quiet = CHECKING.replace("a != b", "false && a != b")

    honest = await judged_go(backend, **{"calc.go": RIGHT_GO})
    forged = await judged_go(backend, **{VENDORED: quiet})

    assert honest.grade is Grade.PROVEN, (honest.reason, honest.findings)
    assert not forged.accepted, forged.reason
    assert {finding.kind for finding in forged.findings} >= {TamperKind.RUNNER_CONFIG}


@pytest.mark.slow
async def test_a_build_that_says_other_things_of_tests_is_not_proven(
    backend: SandboxBackend,
) -> None:
    told = f"{IN_GO['go.mod']}\nexclude example.com/other v1.0.0\n"
    newer = IN_GO["go.mod"].replace("1.18", "1.19")

    honest = await judged_go(backend, **{"calc.go": RIGHT_GO, "go.mod": newer})
    doubtful = await judged_go(backend, **{"calc.go": RIGHT_GO, "go.mod": told})

    assert honest.grade is Grade.PROVEN, (honest.reason, honest.findings)
    assert doubtful.grade is Grade.CHECKED, (doubtful.reason, doubtful.findings)


LIAR_IN_GO = """
package calc
import ("fmt"; "os"; "path/filepath"; "strings")
func Add(a, b int) int { return 0 }
func init() {
    names, _ := filepath.Glob("*_test.go")
    for _, name := range names {
        text, _ := os.ReadFile(name)
        for _, part := range strings.Split(string(text), "func Test")[1:] {
            test, word := "Test" + strings.SplitN(part, "(", 2)[0], "PASS"
            if name != "calc_test.go" { word = "FAIL" }
            fmt.Printf("=== RUN   %s\\n--- %s: %s (0.00s)\\n", test, word, test)
        }
    }
    fmt.Println("FAIL")
    os.Exit(1)
}
"""


@pytest.mark.slow
async def test_a_report_with_planted_tests_that_were_read_is_not_proven(
    backend: SandboxBackend,
) -> None:
    """It is not prevented; known by its signs, it is a doubt."""
    verdict = await judged_go(backend, **{"calc.go": LIAR_IN_GO})

    assert verdict.grade is not Grade.PROVEN, verdict.reason
    named = {finding.kind for finding in verdict.findings}
    assert named >= {TamperKind.READS_TESTS, TamperKind.FORGED_REPORT}, verdict.findings
