"""An acceptance needs a change that the deciding tests run, and that makes a difference to them."""

from collections.abc import AsyncGenerator
from pathlib import PurePosixPath

import pytest

from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend
from assay.contracts.verdict import Grade, TamperKind, Verdict
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier
from tests.support.backends import open_native

# A package that the interpreter of the sandbox has installed as well.
COPY = PurePosixPath("src/mdurl/__init__.py")
TESTS = PurePosixPath("tests/test_it.py")
RIGHT = b"def answer():\n    return 42\n"
WRONG = b"def answer():\n    return 41\n"
REDIRECTING = b"""\
import sys
sys.path[:] = [place for place in sys.path if not place.endswith(("/app", "/src"))]
del sys.modules["mdurl"]
import mdurl
"""
SPAWNING = """\
with mp.get_context("spawn").Pool(1) as pool:
        pool.apply(runpy.run_path, ("job.py",), {"run_name": "job"})"""


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def tree(**files: bytes) -> Tree:
    return Tree(files={PurePosixPath(name): TreeFile(text) for name, text in files.items()})


async def judge(
    backend: SandboxBackend, before: Tree, after: Tree, *, check: str = "pytest -q"
) -> Verdict:
    case = VerificationSpec(pristine=before, checks=(check,), protected=(TESTS,))
    return await Verifier(backend, Limits()).verify(case, after)


def project(module: str, content: bytes, tests: bytes) -> Tree:
    return tree(**{module: content, str(TESTS): tests})


@pytest.mark.parametrize("check", ["pytest -q", "python -m unittest tests.test_it"])
async def test_a_src_layout_is_judged_and_not_an_installed_copy(
    backend: SandboxBackend, check: str
) -> None:
    tests = (
        b"import unittest\nfrom mdurl import answer\n\n\nclass TestIt(unittest.TestCase):\n"
        b"    def test_it(self):\n        self.assertEqual(answer(), 42)\n"
    )
    before = project(str(COPY), WRONG, tests)

    right = await judge(backend, before, before.with_files({COPY: TreeFile(RIGHT)}), check=check)
    garbage = before.with_files({COPY: TreeFile(b"raise SystemExit('garbage')\n")})
    wrong = await judge(backend, before, garbage, check=check)

    assert right.grade is Grade.PROVEN, right.reason
    assert not wrong.accepted


async def test_tests_that_import_another_copy_accept_nothing(backend: SandboxBackend) -> None:
    tests = b"from mdurl import parse\n\n\ndef test_it():\n    assert parse('x')\n"
    hidden = PurePosixPath("lib/mdurl/__init__.py")
    before = project(str(hidden), WRONG, tests)

    verdict = await judge(backend, before, before.with_files({hidden: TreeFile(b"garbage(\n")}))

    assert not verdict.accepted
    assert not verdict.tampered
    assert "do not run the changed files; they import `mdurl` from /" in verdict.reason


async def test_a_proposal_without_a_change_is_not_accepted(backend: SandboxBackend) -> None:
    tests = b"from it import answer\n\n\ndef test_it():\n    assert answer() == 42\n"
    before = project("it.py", RIGHT, tests)

    verdict = await judge(backend, before, before)

    assert not verdict.accepted
    assert verdict.reason == "no file was changed"


async def test_tests_that_passed_before_are_worth_no_more_than_a_command_that_did(
    backend: SandboxBackend,
) -> None:
    tests = b"from it import answer\n\n\ndef test_it():\n    assert answer() == 42\n"
    before = project("it.py", RIGHT, tests)
    after = before.with_files({PurePosixPath("it.py"): TreeFile(RIGHT + b"\n\nNAME = 'it'\n")})

    for check in ("pytest -q", "true"):
        verdict = await judge(backend, before, after, check=check)

        assert verdict.grade is Grade.RAN
        assert TamperKind.PASSED_BEFORE in {finding.kind for finding in verdict.findings}
        assert "passed on the untouched files as well" in verdict.reason


async def test_a_program_that_the_tests_start_counts_as_run(backend: SandboxBackend) -> None:
    tests = (
        b"import subprocess, sys\n\n\ndef test_it():\n"
        b"    done = subprocess.run([sys.executable, 'tool.py'], capture_output=True, check=True)\n"
        b"    assert done.stdout == b'42\\n'\n"
    )
    tool = PurePosixPath("tool.py")
    before = project("tool.py", b"print(41)\n", tests)

    verdict = await judge(backend, before, before.with_files({tool: TreeFile(b"print(42)\n")}))

    assert verdict.grade is Grade.PROVEN, verdict.reason


async def test_a_program_that_the_tests_start_runs_the_judged_copy(backend: SandboxBackend) -> None:
    tests = (
        b"import subprocess, sys\n\n\ndef test_it():\n"
        b"    command = [sys.executable, '-m', 'mdurl']\n"
        b"    assert subprocess.run(command, capture_output=True).stdout == b'42\\n'\n"
    )
    before = project("src/mdurl/__main__.py", b"print(41)\n", tests)
    before = before.with_files({COPY: TreeFile(b"")})
    main = PurePosixPath("src/mdurl/__main__.py")

    verdict = await judge(backend, before, before.with_files({main: TreeFile(b"print(42)\n")}))

    assert verdict.grade is Grade.PROVEN, verdict.reason


@pytest.mark.parametrize(
    ("check", "grade"),
    [
        ("cd part && pytest -q", Grade.PROVEN),
        ("pytest -q part/tests", Grade.PROVEN),
        ("cd part/tests && PYTHONPATH=../src python test_it.py", Grade.CHECKED),
    ],
)
async def test_a_src_layout_below_the_root_is_judged(
    backend: SandboxBackend, check: str, grade: Grade
) -> None:
    source, test = PurePosixPath("part/src/mdurl/__init__.py"), PurePosixPath("part") / TESTS
    content = b"from mdurl import answer\n\n\ndef test_it():\n    assert answer() == 42\n\n\n"
    before = tree(**{str(source): WRONG, str(test): content + b"test_it()\n"})
    case = VerificationSpec(pristine=before, checks=(check,), protected=(test,))

    after = before.with_files({source: TreeFile(RIGHT)})
    verdict = await Verifier(backend, Limits()).verify(case, after)

    assert verdict.grade is grade, verdict.reason


async def test_a_command_in_another_folder_imports_the_judged_copy(backend: SandboxBackend) -> None:
    tests = b"from mdurl import answer\n\nassert answer() == 42\n"
    before = project(str(COPY), WRONG, tests)
    after = before.with_files({COPY: TreeFile(RIGHT)})

    for check in ("cd tests && python test_it.py", "cd tests && python test_it.py && true"):
        verdict = await judge(backend, before, after, check=check)

        assert verdict.grade is Grade.CHECKED, verdict.reason


@pytest.mark.parametrize("folder", ["", "src/"])
@pytest.mark.parametrize(
    "content",
    [None, REDIRECTING],
)
async def test_a_change_that_lets_the_tests_import_another_copy_is_not_accepted(
    backend: SandboxBackend, folder: str, content: bytes | None
) -> None:
    tests = b"from mdurl import parse\n\n\ndef test_it():\n    assert parse('x')\n"
    module = PurePosixPath(f"{folder}mdurl/__init__.py")
    before = project(str(module), b"def parse(text):\n    return None\n", tests)
    after = before.with_files({module: TreeFile(content)}) if content else before.without([module])

    verdict = await judge(backend, before, after)

    assert not verdict.accepted
    assert "do not run the changed files; they import `mdurl` from /" in verdict.reason


async def test_a_file_that_no_test_imports_may_be_deleted(backend: SandboxBackend) -> None:
    tests = b"import os\n\n\ndef test_it():\n    assert not os.path.exists('mdurl/old.py')\n"
    old = PurePosixPath("mdurl/old.py")
    before = project("mdurl/__init__.py", RIGHT, tests).with_files({old: TreeFile(WRONG)})

    verdict = await judge(backend, before, before.without([old]))

    assert verdict.grade is Grade.PROVEN, verdict.reason


@pytest.mark.parametrize(
    "start",
    ["assert os.system(sys.executable + ' job.py') == 0", SPAWNING],
)
async def test_a_file_that_only_a_started_process_imports_is_not_rejected(
    backend: SandboxBackend, start: str
) -> None:
    tests = f"import multiprocessing as mp, os, runpy, sys\n\n\ndef test_it():\n    {start}\n"
    before = project("it.py", WRONG, tests.encode()).with_files(
        {PurePosixPath("job.py"): TreeFile(b"import it\nassert it.answer() == 42\ndel it\n")}
    )
    after = before.with_files({PurePosixPath("it.py"): TreeFile(RIGHT)})

    verdict = await judge(backend, before, after)

    assert verdict.grade is Grade.CHECKED, verdict.reason
    assert "changed, and not seen to run in the tests: it.py" in verdict.reason


async def test_projects_below_the_root_find_each_other(backend: SandboxBackend) -> None:
    test = PurePosixPath("packages/one/tests/test_one.py")
    one = PurePosixPath("packages/one/src/one/__init__.py")
    before = tree(
        **{
            str(one): b"from mdurl import answer as two\n\n\ndef answer():\n    return two() - 1\n",
            "packages/two/src/mdurl/__init__.py": RIGHT,
            str(test): b"from one import answer\n\n\ndef test_it():\n    assert answer() == 42\n",
        }
    )
    after = before.with_files({one: TreeFile(b"from mdurl import answer\n")})

    for check in ("pytest -q", f"pytest -q {test}", "cd packages/one && pytest -q"):
        case = VerificationSpec(pristine=before, checks=(check,), protected=(test,))
        verdict = await Verifier(backend, Limits()).verify(case, after)

        assert verdict.grade is Grade.PROVEN, verdict.reason


@pytest.mark.parametrize(
    ("added", "grade"),
    [
        (b"def test_more():\n    assert len('it') == 2\n", Grade.RAN),
        (b"import it\n\n\ndef test_more():\n    assert it.NAME == 'it'\n", Grade.CHECKED),
    ],
)
async def test_tests_that_the_agent_adds_count_only_if_they_fail_without_its_change(
    backend: SandboxBackend, added: bytes, grade: Grade
) -> None:
    tests = b"from it import answer\n\n\ndef test_it():\n    assert answer() == 42\n"
    before = project("it.py", RIGHT, tests)
    after = before.with_files(
        {
            PurePosixPath("it.py"): TreeFile(RIGHT + b"\n\nNAME = 'it'\n"),
            PurePosixPath("tests/test_more.py"): TreeFile(added),
        }
    )

    verdict = await judge(backend, before, after)

    assert verdict.grade is grade, verdict.reason
    assert any("which the agent may change" in found.explanation for found in verdict.findings)
