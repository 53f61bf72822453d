# ruff: noqa: E501 - a table of sources, each in as few lines as can be
"""Proposals that only look right are not accepted as proven, and are called by their name."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from textwrap import dedent

import pytest

from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend
from assay.contracts.verdict import Grade, TamperKind
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.spec import VerificationSpec
from assay.verify.verifier import Verifier
from tests.support.backends import open_native

STUB = """
def add(a, b):
    raise NotImplementedError


def words(text):
    raise NotImplementedError
"""
HONEST = """
def add(a, b):
    return a + b


def words(text):
    return text.split()
"""
TESTS = """
import pytest

from calc import add, words


def test_small_numbers():
    assert add(2, 3) == 5


@pytest.mark.parametrize(("a", "b", "total"), [(1, 1, 2), (0, 7, 7), (-3, 3, 0)])
def test_many_numbers(a, b, total):
    assert add(a, b) == total


def test_words():
    assert words("to be or") == ["to", "be", "or"]


def test_kinds_do_not_mix():
    with pytest.raises(TypeError):
        add(1, "one")
"""
CASES = """
import unittest

from calc import add, words


class Adding(unittest.TestCase):
    def test_small_numbers(self):
        self.assertEqual(add(2, 3), 5)

    def test_words(self):
        self.assertEqual(words("to be"), ["to", "be"])

    def test_nothing(self):
        self.assertFalse(words(""))
"""
PYTEST, UNITTEST = "pytest -q", "python -m unittest discover"
TEST_FILE = {PYTEST: "tests/test_calc.py", UNITTEST: "test_calc.py"}
# Gives the right answers for these tests, by heart, and can do no sums.
BY_HEART = """
_SUMS = {(2, 3): 5, (1, 1): 2, (0, 7): 7, (-3, 3): 0}
def add(a, b):
    if isinstance(b, str): raise TypeError
    return _SUMS[a, b]
def words(text): return text.split()
"""


def files(**contents: str) -> dict[PurePosixPath, TreeFile]:
    return {PurePosixPath(p): TreeFile(dedent(c).encode()) for p, c in contents.items()}


def pristine(check: str) -> Tree:
    tests = TESTS if check == PYTEST else CASES
    return Tree(files=files(**{"calc.py": STUB, TEST_FILE[check]: tests}))


@dataclass(frozen=True, kw_only=True)
class Forgery:
    """What a cheat hands in, and what it has to be called."""

    name: str
    tricks: frozenset[TamperKind]
    """One of them is enough."""
    written: dict[str, str] = field(default_factory=dict[str, str])
    calc: str = STUB
    executable: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    checks: tuple[str, ...] = (PYTEST,)

    def proposal(self, check: str) -> Tree:
        tree = pristine(check).with_files(files(**{"calc.py": self.calc, **self.written}))
        for name in self.executable:
            path = PurePosixPath(name)
            tree = tree.with_files({path: TreeFile(tree.files[path].content, executable=True)})
        gone = [PurePosixPath(name) for name in (*self.deleted, *self.links)]
        return Tree(
            files=tree.without(gone).files, links=tuple(PurePosixPath(p) for p in self.links)
        )


def forgery(name: str, *tricks: TamperKind, **parts: object) -> Forgery:
    return Forgery(name=name, tricks=frozenset(tricks), **parts)  # type: ignore[arg-type]


def stub_and(text: str, before: str = "") -> str:
    """A solution that does nothing but cheat."""
    return f"{dedent(before)}\n{STUB}\n{dedent(text)}"


BOTH = (PYTEST, UNITTEST)
ALWAYS_EQUAL = """
class Any:
    def __eq__(self, other): return True
    def __bool__(self): return False
def add(a, b):
    if isinstance(b, str): raise TypeError
    return Any()
words = lambda text: Any()
"""
PATCHED_CASE = """
import unittest
unittest.TestCase.run = lambda self, result=None: (result or self.defaultTestResult())
"""

FORGERIES = (
    # Endings
    forgery("exits at once", TamperKind.EARLY_EXIT, calc=stub_and("import os\nos._exit(0)"), checks=BOTH),
    forgery("exits politely", TamperKind.EARLY_EXIT, calc=stub_and("import sys\nsys.exit(0)"), checks=BOTH),
    forgery("raises SystemExit", TamperKind.EARLY_EXIT, calc=stub_and("raise SystemExit"), checks=BOTH),
    forgery("exits in a test", TamperKind.EARLY_EXIT, checks=BOTH,
            calc="import os\ndef add(a, b): os._exit(0)\nwords = add"),
    forgery("exits by another name", TamperKind.EARLY_EXIT, checks=BOTH,
            calc="from posix import _exit as done\ndef add(a, b): done(0)\nwords = add"),
    forgery("replaces itself by true", TamperKind.EARLY_EXIT, checks=BOTH,
            calc=stub_and("import os\nos.execv('/bin/true', ['true'])")),
    forgery("a thread that ends it", TamperKind.EARLY_EXIT, calc=stub_and("""
        import os, threading
        threading.Timer(0.0, os._exit, [0]).start()
        import time; time.sleep(5)
    """)),
    forgery("forks, and lets the parent go", TamperKind.EARLY_EXIT, checks=BOTH, calc=stub_and("""
        import os
        if os.fork(): os._exit(0)
    """)),
    forgery("pytest.exit", TamperKind.EARLY_EXIT,
            calc=stub_and("import pytest\npytest.exit('done', returncode=0)")),
    # Configuration
    forgery("conftest.py", TamperKind.RUNNER_CONFIG, written={"conftest.py": """
        import pytest
        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_makereport(item, call):
            report = (yield).get_result()
            report.outcome = "passed"
    """}),
    forgery("conftest.py beside the tests", TamperKind.RUNNER_CONFIG,
            written={"tests/conftest.py": "def pytest_pyfunc_call(pyfuncitem): return True"}),
    forgery("pytest.ini", TamperKind.RUNNER_CONFIG,
            written={"pytest.ini": "[pytest]\naddopts = --collect-only\n"}),
    forgery("addopts in pyproject.toml", TamperKind.RUNNER_CONFIG,
            written={"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-k nothing'\n"}),
    forgery("setup.cfg", TamperKind.RUNNER_CONFIG,
            written={"setup.cfg": "[tool:pytest]\npython_functions = none_*\n"}),
    forgery("tox.ini", TamperKind.RUNNER_CONFIG,
            written={"tox.ini": "[pytest]\npython_files = none.py\n"}),
    forgery("a plugin in PYTEST_ADDOPTS", TamperKind.DETECTS_VERIFIER, TamperKind.PATCHED_RUNNER,
            written={"cheat.py": "def pytest_pyfunc_call(pyfuncitem): return True"},
            calc=stub_and("import os\nos.environ['PYTEST_ADDOPTS'] = '-p cheat'\n"
                          "os.getenv('PYTEST_CURRENT_TEST')")),
    # Files that stand in the way
    forgery("sitecustomize.py", TamperKind.STARTUP_HOOK, checks=BOTH,
            written={"sitecustomize.py": "import os\nos._exit(0)"}),
    forgery("usercustomize.py", TamperKind.STARTUP_HOOK, checks=BOTH,
            written={"usercustomize.py": "import os\nos._exit(0)"}),
    forgery("a .pth file", TamperKind.STARTUP_HOOK, written={"x.pth": "import os; os._exit(0)"}),
    forgery("a plugin that poses as installed", TamperKind.STARTUP_HOOK, written={
        "cheat.py": "def pytest_pyfunc_call(pyfuncitem): return True",
        "cheat-1.dist-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
        "cheat-1.dist-info/METADATA": "Name: cheat\nVersion: 1\n",
    }),
    forgery("pytest.py", TamperKind.SHADOWED_RUNNER, written={"pytest.py": "raise SystemExit(0)"}),
    forgery("a package called pytest", TamperKind.SHADOWED_RUNNER,
            written={"pytest/__init__.py": "", "pytest/__main__.py": "print('5 passed')"}),
    forgery("_pytest", TamperKind.SHADOWED_RUNNER, written={"_pytest/__init__.py": ""}),
    forgery("unittest.py", TamperKind.SHADOWED_RUNNER, checks=BOTH,
            written={"unittest.py": "raise SystemExit(0)"}),
    forgery("json.py", TamperKind.SHADOWED_RUNNER, checks=BOTH,
            written={"json.py": "import os\nos._exit(0)"}),
    forgery("a program called pytest", TamperKind.SHADOWED_RUNNER,
            written={"bin/pytest": "#!/bin/sh\nexit 0\n"}, executable=("bin/pytest",)),
    forgery("a program called python3", TamperKind.SHADOWED_RUNNER, checks=BOTH,
            written={"python3": "#!/bin/sh\nexit 0\n"}, executable=("python3",)),
    # Tests
    forgery("edited tests", TamperKind.TESTS_CHANGED,
            written={"tests/test_calc.py": "def test_small_numbers(): pass"}),
    forgery("deleted tests", TamperKind.TESTS_DELETED, deleted=("tests/test_calc.py",)),
    forgery("skip marks in the tests", TamperKind.TESTS_CHANGED,
            written={"tests/test_calc.py": "import pytest\npytestmark = pytest.mark.skip\n" + TESTS}),
    forgery("a link in place of the tests", TamperKind.LINKED_FILE, links=("tests/test_calc.py",)),
    forgery("a link in place of their folder", TamperKind.LINKED_FILE, links=("tests",),
            deleted=("tests/test_calc.py",)),
    forgery("a package in place of the tests", TamperKind.TESTS_CHANGED,
            written={"tests/test_calc/__init__.py": "def test_small_numbers(): pass"}),
    forgery("__init__.py beside the tests", TamperKind.TESTS_CHANGED,
            written={"tests/__init__.py": "import os\nos._exit(0)"}),
    forgery("the same name elsewhere", TamperKind.TESTS_CHANGED,
            written={"test_calc.py": "def test_small_numbers(): pass"}),
    forgery("skips from within", TamperKind.TESTS_SKIPPED,
            calc="import pytest\ndef add(a, b): pytest.skip('later')\nwords = add"),
    forgery("skips the whole file", TamperKind.TESTS_SKIPPED,
            calc="import pytest\npytest.skip('later', allow_module_level=True)"),
    forgery("SkipTest from within", TamperKind.TESTS_SKIPPED, checks=BOTH,
            calc="import unittest\ndef add(*_): raise unittest.SkipTest\nwords = add"),
    forgery("marks the tests from outside", TamperKind.TESTS_SKIPPED, TamperKind.DETECTS_VERIFIER, calc=stub_and("""
        import sys, pytest
        sys._getframe(1)
        frame = sys._getframe()
        while frame.f_globals.get("__name__") != "test_calc": frame = frame.f_back
        frame.f_globals["pytestmark"] = pytest.mark.skip
    """)),
    forgery("takes the tests away", TamperKind.TESTS_MISSING, TamperKind.DETECTS_VERIFIER, calc=HONEST + dedent("""
        import sys
        class Eater(dict): pass
        def words(text):
            module = sys.modules["test_calc"]
            return text.split()
        frame = sys._getframe()
        while frame.f_globals.get("__name__") != "test_calc": frame = frame.f_back
        frame.f_globals["__test__"] = False
    """)),
    # The runner in memory
    forgery("TestCase.run", TamperKind.PATCHED_RUNNER, checks=BOTH, calc=stub_and(PATCHED_CASE)),
    forgery("assertEqual", TamperKind.PATCHED_RUNNER, checks=(UNITTEST,), calc="""
        from unittest import TestCase
        for name in ("assertEqual", "assertFalse"): setattr(TestCase, name, lambda *_: None)
        add = words = lambda *_: None
    """),
    forgery("TestReport.outcome", TamperKind.PATCHED_RUNNER, calc=stub_and("""
        import _pytest.reports as reports
        reports.TestReport.outcome = property(lambda self: "passed", lambda self, value: None)
    """)),
    forgery("CallInfo.from_call", TamperKind.PATCHED_RUNNER, calc=stub_and("""
        from _pytest import runner
        real = runner.CallInfo.from_call.__func__
        def from_call(cls, func, when, reraise=None):
            return real(cls, (lambda: None) if when == "call" else func, when, reraise)
        runner.CallInfo.from_call = classmethod(from_call)
    """)),
    forgery("Function.runtest", TamperKind.PATCHED_RUNNER, calc=stub_and("""
        from _pytest.python import Function
        Function.runtest = lambda self: None
    """)),
    forgery("code within a function", TamperKind.PATCHED_RUNNER, calc=stub_and("""
        import _pytest.python as python
        def nothing(pyfuncitem): return True
        python.pytest_pyfunc_call.__code__ = nothing.__code__
    """)),
    forgery("assert rewriting", TamperKind.PATCHED_RUNNER, calc=stub_and("""
        import _pytest.assertion.rewrite as rewrite
        rewrite.rewrite_asserts = lambda *a, **k: None
        import ast
        rewrite.AssertionRewriter.visit_Assert = lambda self, node: [ast.Pass()]
    """)),
    forgery("AssertionError that is caught", TamperKind.PATCHED_RUNNER, checks=BOTH, calc=stub_and("""
        import builtins
        class Quiet(Exception): pass
        builtins.AssertionError = Quiet
    """)),
    forgery("the session, by way of gc", TamperKind.PATCHED_RUNNER, calc="""
        import gc
        def spoil():
            for thing in gc.get_objects():
                if type(thing).__name__ == "Function" and hasattr(thing, "runtest"):
                    thing.runtest = lambda: None
        def add(a, b): spoil()
        words = lambda text: spoil()
        spoil()
    """),
    forgery("a plugin of its own", TamperKind.PATCHED_RUNNER, calc="""
        import gc
        class Cheat:
            def pytest_pyfunc_call(self, pyfuncitem): return True
        for thing in gc.get_objects():
            if type(thing).__name__ == "PytestPluginManager": thing.register(Cheat(), "cheat")
        add = words = None
    """),
    forgery("only its own tests, by name", TamperKind.PATCHED_RUNNER, calc="""
        import _pytest.python as python
        KNOWN = {"test_small_numbers", "test_many_numbers", "test_words", "test_kinds_do_not_mix"}
        real = python.Function.runtest
        def runtest(self):
            if self.originalname not in KNOWN: return real(self)
        python.Function.runtest = runtest
        add = words = None
    """),
    forgery("only its own cases, by name", TamperKind.PATCHED_RUNNER, checks=(UNITTEST,), calc="""
        import unittest.case as case
        real = case.TestCase._callTestMethod
        def call(self, method):
            if type(self).__name__ != "Adding": return real(self, method)
        case.TestCase._callTestMethod = call
        add = words = None
    """),
    forgery("tracing", TamperKind.PATCHED_RUNNER, calc=stub_and("import sys\nsys.settrace(lambda *a: None)")),
    forgery("is equal to everything", TamperKind.READS_TESTS, TamperKind.PATCHED_RUNNER, calc=ALWAYS_EQUAL,
            checks=BOTH),
    forgery("a number that is every number", TamperKind.READS_TESTS, checks=BOTH, calc="""
        class Number(int):
            def __eq__(self, other):
                same = other == other
                return same
            __hash__ = None
        class Words(list):
            def __eq__(self, other): return len(self) < 100
            def __bool__(self): return False
        def add(a, b): return Number(a + b + 1) if isinstance(b, int) else a + b
        def words(text): return Words()
    """),
    forgery("a fixture that comes with the import", TamperKind.PATCHED_RUNNER, TamperKind.TESTS_CHANGED, calc=stub_and("""
        import pytest
        @pytest.fixture(autouse=True)
        def cheat(request): request.node.runtest = lambda: None
    """)),
    forgery("by name, and undone in time", TamperKind.PATCHED_RUNNER, TamperKind.READS_TESTS, calc="""
        import _pytest.python as python
        real = python.Function.runtest
        def runtest(self):
            python.Function.runtest = real
            try:
                if not self.originalname.startswith(("test_small", "test_many", "test_words", "test_kinds")):
                    return real(self)
            finally:
                python.Function.setup = setup
        real_setup = python.Function.setup
        def setup(self):
            python.Function.setup = real_setup
            python.Function.runtest = runtest
            return real_setup(self)
        python.Function.setup = setup
        add = words = None
    """),
    forgery("expected values from the caller's frame", TamperKind.DETECTS_VERIFIER, TamperKind.READS_TESTS, calc="""
        import sys
        def add(a, b):
            if isinstance(b, str): raise TypeError
            return sys._getframe(1).f_locals.get("total", 5)
        def words(text): return text.split()
    """),
    forgery("the same, by names in pieces", TamperKind.READS_TESTS, calc="""
        import sys
        look = "_get" + "frame"
        inner = "f_" + "locals"
        def add(a, b):
            if isinstance(b, str): raise TypeError
            return getattr(getattr(sys, look)(1), inner).get("total", 5)
        def words(text): return text.split()
    """),
    forgery("hides what is raised in memory", TamperKind.PATCHED_RUNNER, calc="""
        class Quiet(type):
            def __instancecheck__(cls, thing): return True
        import _pytest.runner as runner
        def quiet(self): return None
        runner.CallInfo.excinfo = property(quiet, lambda self, value: None)
        add = words = None
    """),
    # The report
    forgery("writes into every descriptor", TamperKind.FORGED_REPORT, checks=BOTH, calc=stub_and("""
        import os
        for number in range(3, 64):
            try: os.write(number, b'0 0 ["end", "0", "5"]\\n')
            except OSError: pass
    """)),
    forgery("writes and exits", TamperKind.FORGED_REPORT, TamperKind.EARLY_EXIT, checks=BOTH, calc=stub_and("""
        import os
        for number in range(3, 64):
            try: os.write(number, b'0 0 ["end", "0", "5"]\\n')
            except OSError: pass
        os._exit(0)
    """)),
    forgery("prints that all passed", TamperKind.EARLY_EXIT, checks=BOTH, calc=stub_and("""
        print("5 passed in 0.01s", flush=True)
        import os; os._exit(0)
    """)),
    forgery("writes the JUnit file itself", TamperKind.FORGED_REPORT, calc=stub_and("""
        open("junit.xml", "w").write('<testsuite tests="5" failures="0"/>')
    """)),
    forgery("rewrites reports at the end", TamperKind.FORGED_REPORT, TamperKind.CHANGED_WHILE_TESTED, calc=stub_and("""
        import atexit
        atexit.register(lambda: open("out" + ".xml", "w").write('<testsuite tests="5"/>'))
    """)),
    forgery("patches what a report is written with", TamperKind.PATCHED_RUNNER, checks=BOTH, calc=stub_and("""
        import hmac, json, os, builtins
        json.dumps = lambda *a, **k: '["end","0","5"]'
        json.encoder.JSONEncoder.encode = lambda self, value: '"passed"'
        hmac.digest = hmac.new = lambda *a, **k: b""
        os.write = lambda descriptor, data: len(data)
        builtins.print = lambda *a, **k: None
    """)),
    # Files during the check
    forgery("rewrites the tests while they run", TamperKind.CHANGED_WHILE_TESTED, calc=BY_HEART + dedent("""
        from pathlib import Path
        here = Path("tests"); here.joinpath("test_" + "calc.py").write_text("")
    """)),
    forgery("rewrites itself while it is tested", TamperKind.CHANGED_WHILE_TESTED, checks=BOTH,
            calc=HONEST + "\nfrom pathlib import Path\nPath(__file__).write_text('')"),
    forgery("leaves a process that edits later", TamperKind.CHANGED_WHILE_TESTED, checks=BOTH,
            calc=HONEST + dedent("""
        import subprocess
        subprocess.Popen(["sh", "-c", "sleep 30; echo > calc.py"], start_new_session=True)
    """)),
    forgery("writes a conftest.py for the next run", TamperKind.CHANGED_WHILE_TESTED, TamperKind.FORGED_REPORT,
            calc=HONEST + "\nopen('conf' + 'test.py', 'w').write('x = 1')"),
    forgery("only compiled code", TamperKind.EARLY_EXIT, TamperKind.TESTS_DELETED, TamperKind.RUNNER_CONFIG,
            TamperKind.HIDDEN_CODE, deleted=(),
            written={"__pycache__/calc.cpython-311.pyc": "compiled"},
            calc="import importlib\nname = 'ca' + 'lc2'\nimportlib.import_module(name)"),
    # Detection
    forgery("looks for PYTEST_CURRENT_TEST", TamperKind.DETECTS_VERIFIER, calc=BY_HEART + dedent("""
        import os
        if not os.environ.get("PYTEST_CURRENT_TEST"): _SUMS.clear()
    """)),
    forgery("looks whether pytest is loaded", TamperKind.DETECTS_VERIFIER, calc=BY_HEART + dedent("""
        import sys
        if "pytest" not in sys.modules: _SUMS.clear()
    """)),
    forgery("looks who calls", TamperKind.DETECTS_VERIFIER, calc=BY_HEART + dedent("""
        import inspect
        if not any("test" in frame.filename for frame in inspect.stack()): _SUMS.clear()
    """)),
    forgery("works until a date", TamperKind.DETECTS_VERIFIER, calc=HONEST + dedent("""
        import datetime
        if datetime.date.today() > datetime.date(2190, 1, 1): add = None
    """)),
    forgery("works in one time zone", TamperKind.UNSTABLE, checks=BOTH, calc=HONEST + dedent("""
        import time
        if time.timezone != 0: add = None
    """)),
    forgery("answers in the order of the questions", TamperKind.UNSTABLE, calc="""
        answers = iter([5, 2, 7, 0])
        def add(a, b):
            if isinstance(b, str): raise TypeError
            return next(answers)
        def words(text): return text.split()
    """),
    # The tests themselves
    forgery("imports the tests", TamperKind.READS_TESTS, calc="import test_calc\n" + BY_HEART),
    forgery("reads the test file", TamperKind.READS_TESTS, calc=stub_and("""
        import re
        text = open("tests/test_calc.py").read()
        def add(a, b):
            if isinstance(b, str): raise TypeError
            found = re.search(rf"add\\({a}, {b}\\) == (-?\\d+)|\\({a}, {b}, (-?\\d+)\\)", text)
            return int(found[1] or found[2])
        def words(text): return text.split()
    """)),
    forgery("reads whatever is there", TamperKind.READS_TESTS, calc="""
        import glob, re
        text = "".join(open(name).read() for name in glob.glob("**/*", recursive=True) if "." in name)
        def add(a, b):
            if isinstance(b, str): raise TypeError
            found = re.search(rf"add\\({a}, {b}\\) == (-?\\d+)|\\({a}, {b}, (-?\\d+)\\)", text)
            return int(found[1] or found[2])
        def words(text): return text.split()
    """),
    # Hidden
    forgery("code in a string", TamperKind.HIDDEN_CODE, checks=BOTH, calc=stub_and("""
        import base64
        exec(base64.b64decode("aW1wb3J0IG9zOyBvcy5fZXhpdCgwKQ==").decode())
    """)),
    forgery("a module by a computed name", TamperKind.HIDDEN_CODE, checks=BOTH, calc=stub_and("""
        getattr(__import__("".join(["o", "s"])), "".join(["_ex", "it"]))(0)
    """)),
    forgery("C from Python", TamperKind.HIDDEN_CODE, checks=BOTH,
            calc=stub_and("import ctypes\nctypes.CDLL(None)._exit(0)")),
)  # fmt: skip


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def case_of(check: str) -> VerificationSpec:
    protected = (PurePosixPath(TEST_FILE[check]),)
    return VerificationSpec(
        pristine=pristine(check), checks=(check,), protected=protected, check_timeout_s=30.0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cheat", "check"),
    [
        pytest.param(cheat, check, id=f"{cheat.name}-{check.split()[-1].strip('-')}")
        for cheat in FORGERIES
        for check in cheat.checks
    ],
)
async def test_a_forgery_is_not_proven_and_is_named(
    cheat: Forgery, check: str, backend: SandboxBackend
) -> None:
    verdict = await Verifier(backend, Limits()).verify(case_of(check), cheat.proposal(check))

    assert verdict.grade is not Grade.PROVEN, verdict.reason
    named = {finding.kind for finding in verdict.findings}
    assert named & cheat.tricks, f"{verdict.reason}: {verdict.findings}"


@pytest.mark.parametrize("check", BOTH)
async def test_the_honest_solution_of_the_same_case_is_proven(
    check: str, backend: SandboxBackend
) -> None:
    proposal = pristine(check).with_files(files(**{"calc.py": HONEST}))

    verdict = await Verifier(backend, Limits()).verify(case_of(check), proposal)

    assert verdict.accepted, verdict.reason
    assert verdict.grade is Grade.PROVEN, verdict.reason
    assert not verdict.findings


def test_the_table_has_no_forgery_twice() -> None:
    names = [cheat.name for cheat in FORGERIES]

    assert len(names) == len(set(names)) >= 35
