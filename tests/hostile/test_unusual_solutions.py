"""Honest but unusual work is neither accused nor graded lower: servers, caches, reports, names."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
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

DOUBLE = "def double(n):\n    return 2 * n\n"
TEST_DOUBLE = "from it import double\n\ndef test_double():\n    assert double(4) == 8\n"


@dataclass(frozen=True, kw_only=True)
class Unusual:
    """An honest change, the files before it, and how its tests are run."""

    name: str
    tests: str = TEST_DOUBLE
    solution: str = DOUBLE
    others: tuple[tuple[str, str], ...] = ()
    """Further files of the user."""
    more: tuple[tuple[str, str], ...] = ()
    """Further files of the change."""
    file: str = "it.py"
    check: str = "pytest -q"
    grade: Grade = Grade.PROVEN


CASES = (
    Unusual(
        name="tests that import the debugger",
        tests="import pdb\n" + TEST_DOUBLE,
    ),
    Unusual(
        name="unittest with deprecated and warning methods",
        tests="""
            import unittest, warnings
            from it import double
            class T(unittest.TestCase):
                def test_old_name(self):
                    self.assertEquals(double(1), 2)
                def test_warns(self):
                    with self.assertWarns(UserWarning):
                        warnings.warn("w")
                    self.assertEqual(double(2), 4)
                def test_again(self):
                    with self.assertWarnsRegex(DeprecationWarning, "x"):
                        warnings.warn("x", DeprecationWarning)
                    self.assertEqual(double(3), 6)
        """,
    ),
    Unusual(
        name="a file that a test case leaves open",
        tests="""
            import unittest
            from it import double
            class T(unittest.TestCase):
                def test_file(self):
                    self.file = open(__file__)
                    self.assertEqual(double(2), 4)
                def test_other(self):
                    open(__file__).readline()
                    self.assertEqual(double(2), 4)
        """,
    ),
    Unusual(
        name="new tests that import pytest",
        more=(
            (
                "test_more.py",
                "import pytest\nfrom it import double\n\n@pytest.mark.parametrize('n', [1])\n"  # noqa: ISC004 - one text
                "def test_more(n):\n    assert double(n) == 2 * n\n",
            ),
        ),
    ),
    Unusual(
        name="a parametrized test with an early return",
        tests="""
            import pytest
            from it import double
            @pytest.mark.parametrize("n", [0, 1, 2])
            def test_double(n):
                if n == 0:
                    return
                assert double(n) == n + n
        """,
    ),
    Unusual(
        name="a report that addopts asks for",
        others=(("pytest.ini", "[pytest]\naddopts = --junitxml=out/report.xml\n"),),
    ),
    Unusual(
        name="a report that a Makefile writes",
        others=(("Makefile", "test:\n\tpython3 -m pytest -q --junitxml=unit.xml\n"),),
        check="make test",
        grade=Grade.CHECKED,
    ),
    Unusual(
        name="a cache and a log that the configuration writes",
        others=(("pytest.ini", "[pytest]\nlog_file = out.log\ncache_dir = .cache\n"),),
        tests="""
            import logging
            from it import double
            def test_double():
                logging.getLogger().warning("x")
                assert double(4) == 8
        """,
    ),
    Unusual(
        name="a fixture with a live process",
        tests="""
            import subprocess, sys
            import pytest
            from it import double
            @pytest.fixture(scope="session")
            def process():
                code = "print(1, flush=True); import time; time.sleep(60)"
                child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
                child.stdout.readline()
                yield child
                child.terminate()
            def test_double(process):
                assert process.poll() is None
                assert double(4) == 8
        """,
    ),
    Unusual(
        name="a process that the tests leave to the end of the session",
        tests="""
            import subprocess, sys
            from it import double
            CHILD = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            def test_double():
                assert CHILD.poll() is None
                assert double(4) == 8
        """,
    ),
    Unusual(
        name="a fixture with an open file",
        tests="""
            import pytest
            from it import double
            @pytest.fixture(scope="module")
            def log(tmp_path_factory):
                return open(tmp_path_factory.mktemp("a") / "log", "w")
            def test_double(log):
                print(double(4), file=log)
                assert double(4) == 8
        """,
    ),
    Unusual(
        name="a loopback server",
        solution="""
            import threading
            from http.server import BaseHTTPRequestHandler, HTTPServer
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b"hello")
                def log_message(self, *args):
                    pass
            def serve():
                server = HTTPServer(("127.0.0.1", 0), Handler)
                threading.Thread(target=server.serve_forever, daemon=True).start()
                return server
        """,
        tests="""
            from urllib.request import urlopen
            from it import serve
            def test_hello():
                server = serve()
                try:
                    with urlopen(f"http://127.0.0.1:{server.server_port}/") as answer:
                        assert answer.read() == b"hello"
                finally:
                    server.shutdown()
                    server.server_close()
        """,
    ),
    Unusual(
        name="a module named like one of the standard library",
        file="statistics.py",
        others=(("statistics.py", "def mean(a):\n    return 0\n"),),
        solution="def mean(a):\n    return sum(a) / len(a)\n",
        tests="from statistics import mean\n\ndef test_mean():\n    assert mean([1, 3]) == 2\n",
    ),
    Unusual(
        name="a metaclass that registers classes",
        solution="""
            class Registry(type):
                known = {}
                def __new__(cls, name, bases, space):
                    made = super().__new__(cls, name, bases, space)
                    cls.known[name] = made
                    return made
            class Base(metaclass=Registry):
                pass
            class One(Base):
                pass
        """,
        tests="""
            from it import Registry
            def test_known():
                assert sorted(Registry.known) == ["Base", "One"]
        """,
    ),
    Unusual(
        name="a cache that lasts from test to test",
        solution="""
            import functools
            calls = []
            @functools.lru_cache(maxsize=None)
            def square(n):
                calls.append(n)
                return n * n
        """,
        tests="""
            import it
            def test_once():
                it.square.cache_clear()
                it.calls.clear()
                assert it.square(3) == it.square(3) == 9
                assert it.calls == [3]
        """,
    ),
    Unusual(
        name="plugins that are imported by a list of names",
        solution="""
            import importlib
            def load(names):
                return [importlib.import_module(f"plugins.{name}").NAME for name in names]
        """,
        others=(
            ("plugins/__init__.py", ""),
            ("plugins/a.py", "NAME = 'A'\n"),
            ("plugins/b.py", "NAME = 'B'\n"),
        ),
        tests="from it import load\n\ndef test_load():\n    assert load('ab') == ['A', 'B']\n",
        grade=Grade.CHECKED,
    ),
    Unusual(
        name="a database file",
        solution="""
            import sqlite3
            def count(path, words):
                base = sqlite3.connect(path)
                base.execute("create table if not exists w (t text)")
                base.executemany("insert into w values (?)", [(word,) for word in words])
                base.commit()
                (number,) = base.execute("select count(*) from w").fetchone()
                base.close()
                return number
        """,
        tests="""
            from it import count
            def test_count(tmp_path):
                assert count(tmp_path / "a.db", ["x", "y"]) == 2
        """,
    ),
    Unusual(
        name="a thread that lives longer than its test",
        solution="""
            import queue, threading
            class Worker:
                def __init__(self):
                    self.jobs, self.done = queue.Queue(), queue.Queue()
                    threading.Thread(target=self.run, daemon=True).start()
                def run(self):
                    while True:
                        self.done.put(self.jobs.get() * 2)
        """,
        tests="""
            from it import Worker
            def test_worker():
                worker = Worker()
                worker.jobs.put(4)
                assert worker.done.get(timeout=20) == 8
        """,
    ),
    Unusual(
        name="attributes that are made on demand",
        solution="""
            class Settings:
                def __init__(self, **values):
                    self._values = values
                def __getattr__(self, name):
                    try:
                        return self.__dict__["_values"][name]
                    except KeyError:
                        raise AttributeError(name) from None
        """,
        tests="""
            import pytest
            from it import Settings
            def test_settings():
                assert Settings(a=1).a == 1
                with pytest.raises(AttributeError):
                    Settings().b
        """,
    ),
    Unusual(
        name="generated test classes",
        tests="""
            from it import double
            def make(n):
                def test(self):
                    assert double(n) == n + n
                return test
            TestAll = type("TestAll", (), {f"test_{n}": make(n) for n in range(1, 4)})
        """,
    ),
    Unusual(
        name="tests in a base class",
        tests="""
            from it import double
            class Cases:
                n = 1
                def test_double(self):
                    assert double(self.n) == self.n + self.n
            class TestOne(Cases):
                n = 1
            class TestTwo(Cases):
                n = 2
        """,
    ),
    Unusual(
        name="doctests",
        solution='''
            def double(n):
                """Return it twice.

                >>> double(3)
                6
                """
                return 2 * n
        ''',
        others=(("pytest.ini", "[pytest]\naddopts = --doctest-modules\n"),),
    ),
    Unusual(
        name="signals and alarms",
        solution="""
            import signal
            def guarded(work, seconds):
                def late(number, frame):
                    raise TimeoutError
                before = signal.signal(signal.SIGALRM, late)
                signal.alarm(seconds)
                try:
                    return work()
                finally:
                    signal.alarm(0)
                    signal.signal(signal.SIGALRM, before)
        """,
        tests="""
            from it import guarded
            def test_in_time():
                assert guarded(lambda: 3, 20) == 3
        """,
    ),
    Unusual(
        name="environment variables and the working folder",
        solution="""
            import os
            from pathlib import Path
            def where():
                return Path(os.environ.get("PLACE", ".")).resolve()
        """,
        tests="""
            from it import where
            def test_place(monkeypatch, tmp_path):
                monkeypatch.setenv("PLACE", str(tmp_path))
                assert where() == tmp_path
            def test_here(monkeypatch, tmp_path):
                monkeypatch.delenv("PLACE", raising=False)
                monkeypatch.chdir(tmp_path)
                assert where() == tmp_path
        """,
    ),
    Unusual(
        name="a generator that is closed",
        solution="""
            def numbers(log):
                try:
                    yield from range(3)
                finally:
                    log.append("closed")
        """,
        tests="""
            from it import numbers
            def test_closed():
                log = []
                source = numbers(log)
                assert next(source) == 0
                source.close()
                assert log == ["closed"]
        """,
    ),
    Unusual(
        name="weak references and garbage",
        solution="""
            import weakref
            class Pool:
                def __init__(self):
                    self.items = weakref.WeakSet()
                def add(self, item):
                    self.items.add(item)
                    return item
        """,
        tests="""
            import gc
            from it import Pool
            class Thing:
                pass
            def test_pool():
                pool = Pool()
                thing = pool.add(Thing())
                assert len(pool.items) == 1
                del thing
                gc.collect()
                assert len(pool.items) == 0
        """,
    ),
    Unusual(
        name="a test that a fixture of the configuration wraps",
        others=(
            (
                "conftest.py",
                "import pytest\n@pytest.fixture(autouse=True)\ndef seed():\n    import random\n"  # noqa: ISC004 - one text
                "    random.seed(1)\n    yield\n",
            ),
        ),
    ),
    Unusual(
        name="expected data in a file",
        others=(("tests/data.json", '{"4": 8}\n'),),
        tests="""
            import json
            from pathlib import Path
            from it import double
            def test_table():
                table = json.loads((Path(__file__).parent / "data.json").read_text())
                for key, value in table.items():
                    assert double(int(key)) == value
        """,
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def trees(case: Unusual) -> tuple[Tree, Tree]:
    """Return the files of the user, and the same with the change."""

    def made(contents: tuple[tuple[str, str], ...]) -> dict[PurePosixPath, TreeFile]:
        return {PurePosixPath(path): TreeFile(dedent(text).encode()) for path, text in contents}

    before = Tree(files=made((("tests/test_it.py", case.tests), *case.others)))
    return before, before.with_files(made(((case.file, case.solution), *case.more)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_unusual_work_is_not_accused(case: Unusual, backend: SandboxBackend) -> None:
    before, after = trees(case)
    own = {PurePosixPath(case.file), PurePosixPath("Makefile")}
    protected = tuple(path for path in before.files if path not in own)
    spec = VerificationSpec(
        pristine=before, checks=(case.check,), protected=protected, check_timeout_s=60.0
    )

    verdict = await Verifier(backend, Limits()).verify(spec, after)

    assert verdict.accepted, (verdict.reason, verdict.findings, verdict.reports)
    assert verdict.grade is case.grade, (verdict.reason, verdict.findings)
    doubts = [finding for finding in verdict.findings if finding.severity != "note"]
    assert not doubts or case.grade is Grade.CHECKED
