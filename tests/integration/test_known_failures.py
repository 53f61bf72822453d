"""Judge by difference: failures that were there before the change do not reject it."""

import shutil
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from assay.contracts.events import Executed
from assay.contracts.execution import Limits
from assay.contracts.goal import RunLimits
from assay.contracts.ports import SandboxBackend
from assay.contracts.verdict import Grade, TamperKind, Verdict
from assay.contracts.workspace import Tree, TreeFile
from assay.runs.reverify import reverify
from assay.storage.certificates import read_certificate
from assay.storage.read_workspace import read_workspace
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier
from tests.support.backends import open_native
from tests.support.requirements import require
from tests.support.undertakings import SMALL, settings_in, tell

WRONG = "def double(n):\n    return n\n"
RIGHT = "def double(n):\n    return 2 * n\n"
TEST_IT = "from it import double\n\n\ndef test_double():\n    assert double(2) == 4\n"
OTHER = "def half(n):\n    return n\n"
TEST_OTHER = """
import time
from other import half

def test_half():
    assert half(4) == 2, f"at {id(object()):#x} {time.time()}s"

def test_zero():
    assert half(0) == 0
"""
FILES = {
    "it.py": WRONG,
    "other.py": OTHER,
    "tests/test_it.py": TEST_IT,
    "tests/test_other.py": TEST_OTHER.replace(' f"at {id(object()):#x} {time.time()}s"', '"no"'),
}
HALF = "tests/test_other.py::test_half"


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def tree_of(files: Mapping[str, str]) -> Tree:
    return Tree(
        files={PurePosixPath(name): TreeFile(text.encode()) for name, text in files.items()}
    )


async def judge(
    backend: SandboxBackend,
    changes: Mapping[str, str],
    *,
    files: Mapping[str, str] = FILES,
    goal: str = "Correct double() in it.py",
    check: str = "pytest -q",
    **more: Any,
) -> Verdict:
    before = tree_of(files)
    protected = tuple(path for path in before.files if path.name.startswith("test"))
    case = VerificationSpec(
        pristine=before, checks=(check,), protected=protected, goal=goal, **more
    )
    return await Verifier(backend, Limits()).verify(case, tree_of({**files, **changes}))


@pytest.mark.parametrize("check", ["pytest -q", "python -m unittest discover -s tests -t ."])
async def test_a_failure_that_was_there_before_does_not_reject(
    backend: SandboxBackend, check: str
) -> None:
    files = FILES
    if "unittest" in check:
        files = {
            **FILES,
            "tests/__init__.py": "",
            "tests/test_it.py": "import unittest\nfrom it import double\n\n"
            "class Double(unittest.TestCase):\n    def test_two(self):\n"
            "        self.assertEqual(double(2), 4)\n",
            "tests/test_other.py": "import unittest\nfrom other import half\n\n"
            "class Halves(unittest.TestCase):\n    def test_four(self):\n"
            "        self.assertEqual(half(4), 2)\n",
        }

    verdict = await judge(backend, {"it.py": RIGHT}, files=files, check=check)

    assert verdict.accepted, verdict.reason
    assert verdict.grade is Grade.CHECKED
    (known,) = verdict.reports[0].known_failures
    assert "test_other" in known
    assert known in verdict.reason
    assert [finding.kind for finding in verdict.findings] == [TamperKind.KNOWN_FAILURE]


async def test_a_new_failure_rejects(backend: SandboxBackend) -> None:
    broken = {"it.py": RIGHT, "other.py": "def half(n):\n    return n or 1\n"}

    verdict = await judge(backend, broken)

    assert not verdict.accepted
    assert "2 of 3 tests did not pass" in verdict.reason
    assert not verdict.tampered


async def test_a_failure_in_another_way_than_before_rejects(backend: SandboxBackend) -> None:
    changes = {"it.py": RIGHT, "other.py": "def half(n):\n    return n and n - 1\n"}

    verdict = await judge(backend, changes)

    assert not verdict.accepted
    assert f"in another way than before: {HALF}" in verdict.reason


async def test_addresses_times_and_temporary_paths_are_no_other_way(
    backend: SandboxBackend,
) -> None:
    noisy = TEST_OTHER.replace("def test_half():", "def test_half(tmp_path):\n    print(tmp_path)")

    verdict = await judge(backend, {"it.py": RIGHT}, files={**FILES, "tests/test_other.py": noisy})

    assert verdict.accepted, verdict.reason
    assert verdict.reports[0].known_failures == (HALF,)


@pytest.mark.parametrize(
    "more",
    [
        {"goal": "Correct double() so that test_half passes"},
        {"goal": "Make the failing tests pass"},
        {"goal": "Correct double() in it.py and half() in other.py"},
        {"required": (HALF,)},
        {"required": ("tests/test_other.py",)},
    ],
)
async def test_what_the_goal_or_the_user_names_must_pass(
    backend: SandboxBackend, more: dict[str, Any]
) -> None:
    verdict = await judge(backend, {"it.py": RIGHT}, **more)

    assert not verdict.accepted
    assert "1 of 3 tests did not pass" in verdict.reason


async def test_half_of_the_work_is_not_accepted(backend: SandboxBackend) -> None:
    """All functions of the file are missing work if the goal names the file alone."""
    files = {
        "it.py": "def double(n):\n    pass\n\ndef half(n):\n    pass\n",
        "tests/test_it.py": "from it import double, half\n\ndef test_double():\n"
        "    assert double(2) == 4\n\ndef test_half():\n    assert half(4) == 2\n",
    }
    changes = {"it.py": "def double(n):\n    return 2 * n\n\ndef half(n):\n    pass\n"}

    verdict = await judge(backend, changes, files=files, goal="Implement it.py")

    assert not verdict.accepted


async def test_a_change_that_fixes_no_test_is_not_accepted(backend: SandboxBackend) -> None:
    files = {**FILES, "tests/test_it.py": TEST_IT.replace("== 4", "== double(1) * 2")}

    verdict = await judge(backend, {"it.py": RIGHT}, files=files)

    assert not verdict.accepted
    assert "no test changed from failing to passing" in verdict.reason


async def test_a_test_that_the_change_adds_is_no_witness(backend: SandboxBackend) -> None:
    changes = {"more.py": RIGHT, "tests_more/test_more.py": "from more import double\n\n"
               "def test_more():\n    assert double(2) == 4\n"}  # fmt: skip

    verdict = await judge(backend, changes, goal="Write more.py")

    assert not verdict.accepted
    assert "no test changed from failing to passing" in verdict.reason


async def test_a_test_that_passed_before_and_is_missing_now_rejects(
    backend: SandboxBackend,
) -> None:
    made = (
        "import pytest, it\nfrom other import half\n\ndef make(n):\n"
        "    def test(self):\n        assert n in it.CASES\n    return test\n\n"
        "TestAll = type('TestAll', (), {f'test_{n}': make(n) for n in it.CASES})\n\n"
        "def test_double():\n    assert it.double(2) == 4\n\n"
        "def test_half():\n    assert half(4) == 2\n"
    )
    files = {**FILES, "it.py": f"CASES = [1, 2]\n{WRONG}", "tests/test_it.py": made}
    del files["tests/test_other.py"]

    verdict = await judge(
        backend, {"it.py": f"CASES = [1]\n{RIGHT}"}, files=files, goal="Correct double()"
    )

    assert not verdict.accepted
    assert "passed on the untouched files and missing now" in verdict.reason


async def test_a_file_that_needs_a_missing_package_does_not_hide_the_others(
    backend: SandboxBackend,
) -> None:
    files = {**FILES, "tests/test_clock.py": "import freezegun\n\ndef test_it():\n    pass\n"}
    del files["tests/test_other.py"]

    verdict = await judge(
        backend, {"it.py": RIGHT}, files=files, goal="Correct it.py so that its tests pass"
    )

    assert verdict.accepted, verdict.reason
    assert verdict.reports[0].known_failures == ("tests/test_clock.py",)
    assert "freezegun" in verdict.tests[-1].message or "freezegun" in verdict.tests[0].message


async def test_the_run_ends_at_the_first_right_attempt_and_its_certificate_holds(
    tmp_path: Path,
) -> None:
    story = await tell(
        tmp_path,
        [f"```python it.py\n{RIGHT}```"],
        files=FILES,
        checks=("pytest -q tests",),
        statement="Correct double() in it.py",
        allowed=("it.py",),
        facts=SMALL,
        limits=RunLimits(attempts=2, check_timeout_s=60),
    )

    assert story.outcome.accepted, story.outcome.reason
    assert story.outcome.grade is Grade.CHECKED
    assert story.outcome.attempts == 1
    (executed,) = story.of(Executed)
    assert executed.reports[0].known_failures == (HALF,)
    (path,) = (story.workspace / ".assay").glob("*.certificate.json")
    certificate = read_certificate(path)
    proof = await reverify(certificate, read_workspace(story.workspace), settings_in(tmp_path))
    assert proof.holds, proof.trouble


async def test_tests_can_be_named_one_by_one(tmp_path: Path) -> None:
    files = {**FILES, "tests/test_it.py": f"{TEST_IT}\n\ndef test_never():\n    assert False\n"}

    story = await tell(
        tmp_path,
        [f"```python it.py\n{RIGHT}```"],
        files=files,
        tests=("tests/test_it.py::test_double",),
        facts=SMALL,
        limits=RunLimits(attempts=1, check_timeout_s=60),
    )

    assert story.outcome.accepted, story.outcome.reason
    assert story.outcome.grade is Grade.PROVEN


GO_TEST = (
    'package {name}\n\nimport "testing"\n\n'
    "func Test{title}(t *testing.T) {{\n\tif got := {call}; got != {want} {{\n"
    '\t\tt.Fatalf("got %v", got)\n\t}}\n}}\n'
)
OTHERS = {
    "node": (
        "node --test test/add.test.mjs test/net.test.mjs",
        {
            "add.mjs": "export const add = (a, b) => a - b;\n",
            "net.mjs": "export const fetch = () => 1;\n",
            "test/add.test.mjs": "import test from 'node:test';\n"
            "import assert from 'node:assert';\n"
            "import { add } from '../add.mjs';\ntest('adds', () => assert.equal(add(1, 2), 3));\n",
            "test/net.test.mjs": "import test from 'node:test';\n"
            "import assert from 'node:assert';\n"
            "import { fetch } from '../net.mjs';\ntest('loads', () => assert.equal(fetch(), 3));\n",
        },
    ),
    "go": (
        "go test ./...",
        {
            "go.mod": "module it\n\ngo 1.19\n",
            "add/add.go": "package add\n\nfunc Add(a, b int) int { return a - b }\n",
            "net/net.go": "package net\n\nfunc Fetch() int { return 1 }\n",
            "add/add_test.go": GO_TEST.format(name="add", title="Add", call="Add(1, 2)", want=3),
            "net/net_test.go": GO_TEST.format(name="net", title="Fetch", call="Fetch()", want=3),
        },
    ),
    "cargo": (
        "cargo test",
        {
            "Cargo.toml": '[package]\nname = "it"\nversion = "0.1.0"\nedition = "2021"\n',
            "src/lib.rs": "pub mod add;\npub mod net;\n",
            "src/add.rs": "pub fn add(a: i32, b: i32) -> i32 { a - b }\n",
            "src/net.rs": "pub fn fetch() -> i32 { 1 }\n",
            "tests/add_test.rs": "#[test]\nfn adds() { assert_eq!(it::add::add(1, 2), 3); }\n",
            "tests/net_test.rs": "#[test]\nfn loads() { assert_eq!(it::net::fetch(), 3); }\n",
        },
    ),
}


@pytest.mark.parametrize("program", OTHERS)
async def test_tests_of_other_languages_are_compared_as_well(
    program: str, backend: SandboxBackend
) -> None:
    found = shutil.which(program) is not None
    require(program, available=found, why=f"{program} is not on PATH")
    check, files = OTHERS[program]
    source = next(name for name in files if "add." in name and "test" not in name)
    other = next(name for name in files if "net." in name and "test" not in name)
    right = {source: files[source].replace("a - b", "a + b")}
    broken = {**right, other: files[other].replace("1", "2")}
    protected = tuple(PurePosixPath(name) for name in files if "test" in name)
    case = VerificationSpec(
        pristine=tree_of(files), checks=(check,), protected=protected, goal="Correct add"
    )

    verdict = await Verifier(backend, Limits()).verify(case, tree_of({**files, **right}))
    rejected = await Verifier(backend, Limits()).verify(case, tree_of({**files, **broken}))

    assert verdict.accepted, verdict.reason
    assert verdict.grade is Grade.CHECKED
    assert len(verdict.reports[0].known_failures) == 1
    assert not rejected.accepted
    assert "in another way than before" in rejected.reason


async def test_a_command_with_only_an_exit_code_says_that_it_is_not_compared(
    tmp_path: Path,
) -> None:
    story = await tell(
        tmp_path,
        ["```python it.py\nx = 1\n```"],
        files={"it.py": "", "check.sh": "grep -q y it.py\n"},
        checks=("sh check.sh",),
        facts=SMALL,
        statement="Correct it.py",
        limits=RunLimits(attempts=1, check_timeout_s=60),
    )

    assert not story.outcome.accepted
    assert "only its exit code is known" in story.outcome.reason
