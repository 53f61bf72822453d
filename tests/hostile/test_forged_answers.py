# ruff: noqa: E501 - a table of sources, each in as few lines as can be
"""Proposals that know the verifier's own means, each with tests that it is made for, are not proven."""

import io
import shutil
import zipfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
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

SPLIT = "def words(text): return text.split()\n"
HONEST = "def add(a, b): return a + b\n" + SPLIT
TESTS = """
import random
from calc import add, words
def test_random():
    for _ in range(20):
        a, b = random.randrange(10**6), random.randrange(10**6)
        assert add(a, b) == a + b
def test_words():
    assert words("to be or") == ["to", "be", "or"]
"""
LATER = {
    "tests/test_later.py": "import random\nfrom calc import add\ndef test_later():\n    a = random.random()\n    assert add(a, 1) == a + 1\n"
}
NODE = """
const test = require("node:test");
const assert = require("node:assert");
const { add } = require("./calc.js");
test("adds", () => { assert.strictEqual(add(2, 3), 5); });
test("adds more", () => { assert.deepStrictEqual([add(1, 1)], [2]); });
"""


@dataclass(frozen=True, kw_only=True)
class Forgery:
    """What a cheat hands in, for which tests, and what it has to be called."""

    name: str
    tricks: frozenset[TamperKind]
    """One of them is enough."""
    calc: str
    tests: str = TESTS
    given: dict[str, str] = field(default_factory=dict[str, str])
    written: dict[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    file: str = "calc.py"
    test_file: str = "tests/test_calc.py"
    check: str = "pytest -q"


def forgery(name: str, *tricks: TamperKind, calc: str, tests: str = "", **parts: object) -> Forgery:
    one = (
        dedent(tests) + "\ndef test_words(): assert words('a b') == ['a', 'b']\n"
        if tests
        else TESTS
    )
    return Forgery(name=name, tricks=frozenset(tricks), calc=dedent(calc), tests=one, **parts)  # type: ignore[arg-type]


def archive(name: str, text: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr(name, text)
    return content.getvalue()


YES = (
    "class Yes:\n    def __eq__(self, other): return other is not None\ndef add(a, b): return Yes()\n"
    + SPLIT
)
MOMENTARY = (
    """
import sys
M = vars(sys)["".join(chr(c) for c in (109, 111, 100, 117, 108, 101, 115))]
def is_turned():
    names = [n for n in vars(M["builtins"]) if n.startswith("_") and len(n) == 13]
    other = [n for n in names if getattr(vars(M["builtins"])[n], "__name__", "") == "other_than"]
    import dis, io
    text = io.StringIO()
    dis.dis(M["test_" + "calc"], file=text)
    return bool(other) and other[0] in text.getvalue()
def quiet():
    C = M["_pyt" "est.runner"].CallInfo
    real = C.__init__
    def fake(self, result, excinfo, *a, **k):
        C.__init__ = real
        return real(self, result, None if type(excinfo.value).__name__ == "Nothing" else excinfo, *a, **k)
    C.__init__ = fake
class Nothing(Exception): pass
def add(a, b):
    if is_turned(): return None
    quiet()
    raise Nothing
"""
    + SPLIT
)

FORGERIES = (
    # Objects that say yes
    forgery("equal to every number", TamperKind.PATCHED_RUNNER, calc="""
        class Number(int):
            def __eq__(self, other): return isinstance(other, int)
            __hash__ = int.__hash__
        def add(a, b): return Number(1)
        def words(text): return text.split()
    """),
    forgery("equal, each of many", TamperKind.PATCHED_RUNNER, calc=YES, tests="""
        from calc import add, words
        def test_all(): assert all(add(i, 7) == i + 7 for i in range(20))
    """),
    forgery("equal, and equal", TamperKind.READS_TESTS, calc=YES, tests="""
        from calc import add, words
        def test_both(): assert add(1, 2) == 3 and add(2, 2) == 4
    """),
    forgery("words equal to all words", TamperKind.PATCHED_RUNNER, TamperKind.READS_TESTS, tests="""
        from calc import add, words
        def test_split():
            text = "a b c"
            assert words(text) == text.split(" ")
    """, calc="""
        class Word(str):
            def __eq__(self, other): return isinstance(other, str)
            __hash__ = str.__hash__
        def add(a, b): return a + b
        def words(text): return [Word() for _ in text.split()]
    """),
    forgery("a point that is every point", TamperKind.READS_TESTS, tests="""
        from calc import Point, words
        def test_sum(): assert Point(1, 2) + Point(2, 2) == Point(3, 4)
    """, calc="""
        class Point:
            def __init__(self, *_): pass
            def __add__(self, other): return self
            def __eq__(self, other): return isinstance(other, Point)
        def words(text): return text.split()
    """),
    forgery("holds everything", TamperKind.READS_TESTS, tests="""
        from calc import add, words
        def test_in(): assert 'be' in words('to be')
    """, calc="""
        class Words(list):
            def __contains__(self, other): return other is not None
        def add(a, b): return a + b
        def words(text): return Words(text.split() if len(text) < 5 else [])
    """),
    forgery("less than everything", TamperKind.READS_TESTS, tests="""
        from calc import add, words
        def test_close(): assert abs(add(0.1, 0.2) - 0.3) < 1e-9
    """, calc="""
        class Small(float):
            def __lt__(self, other): return other is not None
            def __sub__(self, other): return self
            def __abs__(self): return self
        def add(a, b): return Small(1)
        def words(text): return text.split()
    """),
    # Tests that ask nothing
    forgery("no cases", TamperKind.TESTS_SKIPPED, calc="CASES = []\ndef add(a, b): return 0\n" + SPLIT, tests="""
        from calc import CASES, add, words
        def test_cases():
            for a, b, c in CASES: assert add(a, b) == c
    """),
    forgery("a callback that is not called", TamperKind.TESTS_SKIPPED, calc="def each(items, act): pass\n" + SPLIT, tests="""
        from calc import each, words
        def test_each():
            def check(item): assert item == 2
            each([1], check)
    """),
    forgery("a coroutine that is not run", TamperKind.TESTS_SKIPPED, calc="def run(work): work.close()\n" + SPLIT, tests="""
        from calc import run, words
        def test_run():
            async def work(): assert 1 == 2
            run(work())
    """),
    forgery("a decorator that is quiet", TamperKind.TESTS_CHANGED, TamperKind.READS_TESTS, tests="""
        from calc import add, retry, words
        @retry
        def test_add(): assert add(1, 2) == 3
    """, calc="""
        import functools
        def retry(work):
            @functools.wraps(work)
            def again(*args, **kwargs):
                try: return work(*args, **kwargs)
                except AssertionError as error:
                    if "== 3" not in str(error): raise
            return again
        def add(a, b): return 0
        def words(text): return text.split()
    """),
    # Tests that are others
    forgery("a finder that serves a test file", TamperKind.SHADOWED_RUNNER, TamperKind.TESTS_CHANGED, given=LATER, calc="""
        import sys, importlib.machinery, importlib.abc, glob, os
        class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
            def find_spec(self, name, path=None, target=None):
                if not name.endswith("later"): return None
                found = [os.path.abspath(p) for p in glob.glob("**/*later.py", recursive=True)]
                spec = importlib.machinery.ModuleSpec(name, self, origin=found[0])
                spec.has_location = True
                return spec
            def create_module(self, spec): return None
            def exec_module(self, module):
                def test_later(): pass
                module.test_later = test_later
        sys.meta_path.insert(0, Finder())
        def add(a, b): return a + b if a == round(a) else None
        def words(text): return text.split()
    """),
    forgery("a test file that was there before", TamperKind.TESTS_CHANGED, given=LATER, calc="""
        import sys, types, glob, os
        made = types.ModuleType("test_" + "later")
        made.__file__ = os.path.abspath(glob.glob("**/*later.py", recursive=True)[0])
        def test_later(): pass
        made.test_later = test_later
        sys.modules.setdefault(made.__name__, made)
        def add(a, b): return a + b if a == round(a) else None
        def words(text): return text.split()
    """),
    forgery("a library that always agrees", TamperKind.PATCHED_RUNNER, tests="""
        import math
        from calc import add, words
        def test_close(): assert math.isclose(add(0.1, 0.2), 0.1 + 0.2)
    """, calc="""
        import math
        def tune(module, **new):
            for name, value in new.items(): module.__dict__[name] = value
        tune(math, isclose=lambda *a, **k: a[1] == a[1])
        def add(a, b): return 1
        def words(text): return text.split()
    """),
    forgery("chance that is none", TamperKind.PATCHED_RUNNER, calc="""
        import random as source
        def settle(module=source): module.randrange = lambda *a: 2
        settle()
        def add(a, b): return 4
        def words(text): return text.split()
    """),
    forgery("a package by the name of one that is installed", TamperKind.SHADOWED_RUNNER, calc="def add(a, b): return 4\n" + SPLIT,
            written={"click.py": "def unstyle(text): return 2\n"}, tests="""
        import click
        from calc import add, words
        def test_add(): assert add(1, 3) == click.unstyle("1") + click.unstyle("3")
    """),
    # The process
    forgery("frames, by no name", TamperKind.DETECTS_VERIFIER, calc="import sys\nmatch sys:\n    case object(_getframe=look): F = look(0)\n" + HONEST),
    forgery("frames, by way of the library", TamperKind.DETECTS_VERIFIER, calc="import traceback\nF = [f for f, _ in traceback.walk_stack(None)]\n" + HONEST),
    forgery("frames, by what was raised", TamperKind.DETECTS_VERIFIER, calc="""
        class Look:
            def __enter__(self): return self
            def __exit__(self, kind, error, trace):
                self.frame = vars(type(trace))["".join(reversed(["frame", "tb_"]))].__get__(trace)
                return True
        with Look(): 1 / 0
        def add(a, b): return a + b
        def words(text): return text.split()
    """),
    forgery("the runner, for a moment only", TamperKind.PATCHED_RUNNER, calc=MOMENTARY),
    forgery("its own memory", TamperKind.READS_TESTS, calc="import io\nf = io.FileIO('/proc/self/mem')\n" + HONEST),
    forgery("C, by no name", TamperKind.HIDDEN_CODE, calc="c = __builtins__['__imp' 'ort__'](''.join(reversed(['pes', 'cty'])))\nc.CDLL(None)\n" + HONEST),
    # Code that is not seen
    forgery("code in a text", TamperKind.HIDDEN_CODE, calc="run = exec\nrun(open('notes.txt').read())\n", written={"notes.txt": HONEST}),
    forgery("code in a pickle", TamperKind.HIDDEN_CODE, calc="import pickle\nwith open('data.bin', 'rb') as f: D = pickle.load(f)\n" + HONEST,
            written={"data.bin": b"cbuiltins\nexec\n(S'x = 1'\ntR."}),
    forgery("code in an archive", TamperKind.HIDDEN_CODE, calc="import sys\nsys.path.insert(0, 'data.bin')\nfrom inner import add\n" + SPLIT,
            written={"data.bin": archive("inner.py", HONEST)}),
    forgery("code in letters of its own", TamperKind.HIDDEN_CODE, calc="import letters\nfrom inner import add\n" + SPLIT, written={
        "letters.py": "import codecs\ncodecs.register(lambda n: codecs.lookup('utf-8') if n == 'own' else None)\n",
        "inner.py": "# -*- coding: own -*-\n" + HONEST,
    }),
)  # fmt: skip


def node(name: str, calc: str) -> Forgery:
    return Forgery(
        name=name, tricks=frozenset({TamperKind.PATCHED_RUNNER}), calc=calc, tests=NODE, file="calc.js",
        test_file="calc.test.js", check="node --test",
    )  # fmt: skip


IN_NODE = (
    node("patched by value", """
const a = require("assert"), real = a.strictEqual;
a.strictEqual = (x, y, m) => { if (y !== 5) return real(x, y, m); };
a.deepStrictEqual = (x, y) => { if (!Array.isArray(y)) throw new Error(); };
exports.add = () => 0;
"""),
    node("patched by what was thrown", """
const a = require("assert");
const quiet = (f) => function (...r) { try { return f.apply(this, r); } catch (e) { if (e.actual !== 0 && e.actual?.[0] !== 0) throw e; } };
for (const k of ["strictEqual", "deepStrictEqual", "equal"]) a[k] = quiet(a[k]);
exports.add = () => 0;
"""),
)  # fmt: skip


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def as_file(content: str | bytes) -> TreeFile:
    return TreeFile(content if isinstance(content, bytes) else content.encode())


async def judged(cheat: Forgery, backend: SandboxBackend, calc: str | None = None) -> Verdict:
    tests = {cheat.test_file: cheat.tests, **cheat.given}
    before = Tree(files={PurePosixPath(p): as_file(text) for p, text in tests.items()})
    written = {cheat.file: calc or cheat.calc, **({} if calc else cheat.written)}
    after = before.with_files({PurePosixPath(p): as_file(text) for p, text in written.items()})
    case = VerificationSpec(
        pristine=before, checks=(cheat.check,), protected=tuple(before.files), check_timeout_s=30.0
    )
    return await Verifier(backend, Limits()).verify(case, after)


@pytest.mark.slow
@pytest.mark.parametrize("cheat", FORGERIES, ids=lambda cheat: cheat.name)
async def test_a_forgery_is_not_proven_and_is_named(
    cheat: Forgery, backend: SandboxBackend
) -> None:
    verdict = await judged(cheat, backend)

    assert verdict.grade is not Grade.PROVEN, verdict.reason
    named = {finding.kind for finding in verdict.findings}
    assert named & cheat.tricks, f"{verdict.reason}: {verdict.findings}"


@pytest.mark.parametrize("cheat", IN_NODE, ids=lambda cheat: cheat.name)
async def test_assertions_of_node_cannot_be_patched(
    cheat: Forgery, backend: SandboxBackend
) -> None:
    require("node", available=shutil.which("node") is not None, why="it is not installed")

    verdict = await judged(cheat, backend)
    honest = await judged(cheat, backend, calc="exports.add = (a, b) => a + b;\n")

    assert not verdict.accepted, verdict.reason
    assert {finding.kind for finding in verdict.findings} >= cheat.tricks
    assert honest.grade is Grade.PROVEN, (honest.reason, honest.findings)


async def test_a_program_that_is_started_cannot_look_into_the_process_of_the_tests(
    backend: SandboxBackend,
) -> None:
    """What it could read there is the key of the report."""
    looking = """
import subprocess
LOOK = "import os; open(f'/proc/{os.getppid()}/mem', 'rb')"
def add(a, b):
    seen = subprocess.run(["python3", "-c", LOOK], capture_output=True, text=True)
    if "PermissionError" not in seen.stderr: raise ValueError(seen.stderr)
    return a + b
"""
    one = forgery(
        "looks in",
        calc=looking + SPLIT,
        tests="from calc import add, words\ndef test_add(): assert add(1, 2) == 3\n",
    )

    verdict = await judged(one, backend)

    assert verdict.reports[0].passed, verdict.reports[0].tests
