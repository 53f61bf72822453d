"""The verifier can say yes: honest work in many styles is accepted as proven, without a finding."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Honest:
    """A solution, the tests it is for, and how they are run."""

    name: str
    solution: str
    tests: str
    check: str = "pytest -q"
    others: tuple[tuple[str, str], ...] = ()
    """Further files of the person: configuration, fixtures, data."""
    test_file: str = "tests/test_it.py"


SOLUTIONS = (
    Honest(
        name="parameters with ids",
        solution="def roman(n):\n    return 'X' * (n // 10) + 'I' * (n % 10)\n",
        tests="""
            import pytest
            from it import roman
            @pytest.mark.parametrize(
                ("number", "text"), [(1, "I"), (12, "XII"), pytest.param(20, "XX", id="twenty")]
            )
            def test_roman(number, text):
                assert roman(number) == text
        """,
    ),
    Honest(
        name="a round trip over its parameter",
        solution="def turn(text):\n    return text[::-1]\n",
        tests="""
            import pytest
            from it import turn
            @pytest.mark.parametrize("text", ["", "a", "abc"])
            def test_twice_is_nothing(text):
                assert turn(turn(text)) == text
        """,
    ),
    Honest(
        name="assertions that the tests define themselves",
        solution="def pairs(n):\n    return [(i, i + 1) for i in range(n)]\n",
        tests="""
            import unittest
            from it import pairs
            class PairsTest(unittest.TestCase):
                def test_three(self):
                    self.assert_chain(pairs(3), length=3)
                def test_none(self):
                    self.assert_chain(pairs(0), length=0)
                def assert_chain(self, chain, length):
                    self.assert_is_long(chain, length)
                    for left, right in chain:
                        self.assertEqual(left + 1, right)
                def assert_is_long(self, chain, length):
                    self.assertEqual(len(chain), length)
        """,
    ),
    Honest(
        name="fixtures of all scopes",
        solution="class Stack(list):\n    def top(self):\n        return self[-1]\n",
        tests="""
            import pytest
            from it import Stack
            @pytest.fixture(scope="module")
            def numbers():
                return [1, 2, 3]
            @pytest.fixture(autouse=True)
            def quiet(monkeypatch):
                monkeypatch.setenv("QUIET", "1")
            @pytest.fixture
            def stack(numbers):
                yield Stack(numbers)
            def test_top(stack):
                assert stack.top() == 3
            def test_empty():
                with pytest.raises(IndexError):
                    Stack().top()
        """,
    ),
    Honest(
        name="conftest.py and configuration of the person",
        solution="def double(n):\n    return 2 * n\n",
        tests="def test_double(four):\n    from it import double\n    assert double(four) == 8\n",
        others=(
            ("conftest.py", "import pytest\n@pytest.fixture\ndef four(): return 4\n"),
            ("pytest.ini", "[pytest]\naddopts = -ra\ntestpaths = tests\n"),
        ),
    ),
    Honest(
        name="printed output",
        solution="def greet(name):\n    print(f'Hello, {name}!')\n",
        tests="""
            from it import greet
            def test_greet(capsys):
                greet("Ada")
                assert capsys.readouterr().out == "Hello, Ada!\\n"
        """,
    ),
    Honest(
        name="files",
        solution="""
            import csv
            def total(path):
                with open(path, newline="") as file:
                    return sum(float(row["amount"]) for row in csv.DictReader(file))
        """,
        tests="""
            from it import total
            def test_total(tmp_path):
                file = tmp_path / "a.csv"
                file.write_text("amount\\n1.5\\n2\\n")
                assert total(file) == 3.5
            def test_nothing(tmp_path):
                (tmp_path / "b.csv").write_text("amount\\n")
                expected = 0
                assert total(tmp_path / "b.csv") == expected
        """,
    ),
    Honest(
        name="a command line, in a process of its own",
        solution="""
            import argparse, json, sys
            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("numbers", nargs="*", type=int)
                args = parser.parse_args()
                if not args.numbers:
                    print("no numbers", file=sys.stderr)
                    return 2
                print(json.dumps({"sum": sum(args.numbers)}))
                return 0
            if __name__ == "__main__":
                sys.exit(main())
        """,
        tests="""
            import json, subprocess, sys
            def run(*args):
                command = [sys.executable, "it.py", *args]
                return subprocess.run(command, capture_output=True, text=True)
            def test_sum():
                assert json.loads(run("1", "2").stdout) == {"sum": 3}
            def test_no_numbers():
                done = run()
                assert done.returncode == 2
                assert "no numbers" in done.stderr
        """,
    ),
    Honest(
        name="classes of tests",
        solution="""
            from dataclasses import dataclass
            @dataclass(frozen=True)
            class Point:
                x: int
                y: int
                def __add__(self, other):
                    return Point(self.x + other.x, self.y + other.y)
        """,
        tests="""
            from it import Point
            class TestPoint:
                def setup_method(self):
                    self.a = Point(1, 2)
                def test_sum(self):
                    assert self.a + Point(2, 2) == Point(3, 4)
            class TestEquality:
                class TestOfPoints:
                    def test_same(self):
                        assert Point(0, 0) == Point(0, 0)
                        assert Point(0, 0) != Point(0, 1)
        """,
    ),
    Honest(
        name="unittest within pytest, with subtests",
        solution="def is_even(n):\n    return n % 2 == 0\n",
        tests="""
            import unittest
            from it import is_even
            class Even(unittest.TestCase):
                @classmethod
                def setUpClass(cls):
                    cls.even = [0, 2, 4]
                def test_even(self):
                    for n in self.even:
                        with self.subTest(n=n):
                            self.assertTrue(is_even(n))
                def test_odd(self):
                    self.assertFalse(is_even(1))
        """,
    ),
    Honest(
        name="unittest by itself",
        solution="def mean(numbers):\n    return sum(numbers) / len(numbers)\n",
        tests="""
            import unittest
            from it import mean
            class Mean(unittest.TestCase):
                def test_values(self):
                    for numbers, expected in [([1], 1), ([1, 2], 1.5)]:
                        with self.subTest(numbers=numbers):
                            self.assertEqual(mean(numbers), expected)
                def test_close(self):
                    self.assertAlmostEqual(mean([0.1, 0.2]), 0.15)
                def test_kinds(self):
                    self.assertCountEqual([mean([3]), mean([4])], [4.0, 3.0])
                def test_nothing(self):
                    self.assertRaises(ZeroDivisionError, mean, [])
            if __name__ == "__main__":
                unittest.main()
        """,
        check="python -m unittest",
        test_file="test_it.py",
    ),
    Honest(
        name="unittest in a package, with verbose output",
        solution="def first(items):\n    return items[0]\n",
        tests="""
            from unittest import TestCase
            from it import first
            class First(TestCase):
                def test_first(self):
                    self.assertIs(first([None]), None)
                    with self.assertRaises(IndexError):
                        first([])
        """,
        others=(("tests/__init__.py", ""),),
        check="python3 -m unittest discover -v",
    ),
    Honest(
        name="asynchronous tests",
        solution="""
            import asyncio
            async def later(value):
                await asyncio.sleep(0)
                return value
        """,
        tests="""
            import asyncio, pytest
            from it import later
            @pytest.mark.anyio
            async def test_later():
                assert await later(4) == 4
            def test_run():
                assert asyncio.run(later("a")) == "a"
            @pytest.fixture
            def anyio_backend():
                return "asyncio"
        """,
    ),
    Honest(
        name="nearly equal numbers, times and patterns",
        solution="""
            import datetime, math, re
            def root(x):
                return math.sqrt(x)
            def age(born, today=None):
                today = today or datetime.date.today()
                return today.year - born.year - ((today.month, today.day) < (born.month, born.day))
            def digits(text):
                return [int(number) for number in re.findall(r"[0-9]+", text)]
        """,
        tests="""
            import datetime, pytest
            from it import age, digits, root
            def test_root():
                assert root(2) == pytest.approx(1.41421, abs=1e-4)
            def test_age():
                assert age(datetime.date(2000, 5, 5), datetime.date(2010, 5, 4)) == 9
            def test_digits():
                found = digits("a1b22")
                assert len(found) == 2
                assert found == [1, 22] and found[0] < found[1]
                assert not digits("")
        """,
    ),
    Honest(
        name="a package below src, with a path in front of the command",
        solution="VERSION = 1\n",
        tests="import kit\ndef test_version():\n    assert kit.VERSION == 1\n",
        check="PYTHONPATH=src python -m pytest -q -x tests",
        others=(("src/kit/__init__.py", "from it import VERSION\n"),),
    ),
    Honest(
        name="tests that patch and record",
        solution="""
            import time
            def ask():
                return input("name? ").strip().title()
            def timed(work):
                begun = time.perf_counter()
                work()
                return time.perf_counter() - begun
        """,
        tests="""
            from unittest import mock
            import it
            def test_ask(monkeypatch):
                monkeypatch.setattr("builtins.input", lambda _: " ada ")
                assert it.ask() == "Ada"
            @mock.patch("it.time.perf_counter", side_effect=[1, 3])
            def test_timed(clock):
                work = mock.Mock()
                assert it.timed(work) == 2
                work.assert_called_once_with()
        """,
    ),
    Honest(
        name="assertions in a function of the tests",
        solution="def pair(a, b):\n    return (a, b)\n",
        tests="""
            from it import pair
            def check(made, a, b):
                assert made[0] == a
                assert made[1] == b
            def test_pair():
                check(pair(1, 2), 1, 2)
            def test_it_can_be_called():
                pair(1, 2)
            def test_branches():
                for a in (1, 2):
                    if a > 5:
                        assert pair(a, a) == 7
                    else:
                        assert pair(a, a)
        """,
    ),
    Honest(
        name="properties of random examples",
        solution="def twice(text):\n    return text + text\n",
        tests="""
            from hypothesis import given, strategies
            from it import twice
            @given(strategies.text())
            def test_length(text):
                assert len(twice(text)) == 2 * len(text)
        """,
    ),
    Honest(
        name="kinds made by the library",
        solution="""
            from collections import namedtuple
            from enum import Enum
            from typing import NamedTuple, TypeVar
            T = TypeVar("T")
            Point = namedtuple("Point", "x y")
            Colour = Enum("Colour", "RED BLUE")
            class Pair(NamedTuple):
                left: int = 1
            def swap(point):
                return Point(point.y, point.x)
        """,
        tests="""
            from it import Colour, Pair, Point, swap
            def test_swap():
                assert swap(Point(1, 2)) == Point(2, 1)
            def test_kinds():
                assert Pair().left == 1 and Colour.RED.name == "RED"
        """,
    ),
    Honest(
        name="logs, warnings and errors that are told",
        solution="""
            import logging, traceback, warnings
            log = logging.getLogger(__name__)
            def share(cake, guests):
                warnings.warn("use divide", DeprecationWarning, stacklevel=2)
                log.info("sharing among %s", guests)
                try:
                    return cake / guests
                except ZeroDivisionError:
                    log.exception("nobody came")
                    return traceback.format_exc()
        """,
        tests="""
            import logging, pytest
            from it import share
            def test_share():
                with pytest.warns(DeprecationWarning):
                    assert share(6, 2) == 3
            @pytest.mark.filterwarnings("ignore")
            def test_nobody(caplog):
                caplog.set_level(logging.INFO)
                assert "ZeroDivisionError" in share(1, 0)
                assert "nobody came" in caplog.text
        """,
    ),
    Honest(
        name="warnings that unittest shows at once",
        solution="""
            import warnings
            def old(number):
                warnings.warn("old", DeprecationWarning, stacklevel=2)
                return number + 1
        """,
        tests="""
            import unittest
            from it import old
            class Old(unittest.IsolatedAsyncioTestCase):
                def test_old(self):
                    self.assertEqual(old(1), 2)
                    self.assertLess(old(1), 5)
                    self.assertIn("2", str(old(1)))
                async def test_later(self):
                    self.assertTrue(old(2) == 3)
        """,
        check="python -m unittest",
        test_file="test_it.py",
    ),
    Honest(
        name="objects that know their equals, and an order",
        solution="""
            import functools, pickle
            @functools.total_ordering
            class Version:
                def __init__(self, *parts):
                    self.parts = parts
                def __eq__(self, other):
                    return isinstance(other, Version) and self.parts == other.parts
                def __lt__(self, other):
                    return self.parts < other.parts
                def __hash__(self):
                    return hash(self.parts)
                def copy(self):
                    return pickle.loads(pickle.dumps(self))
        """,
        tests="""
            import random
            from it import Version
            def test_equal():
                assert Version(1, 2) == Version(1, 2) != Version(1, 3)
                assert Version(1).copy() == Version(1)
                assert len({Version(1), Version(1)}) == 1
            def test_order():
                made = [Version(random.randrange(9), n) for n in range(9)]
                assert all(a <= b for a, b in zip(sorted(made), sorted(made)[1:]))
                assert Version(1, 2) < Version(1, 10)
            def test_old_style():
                try:
                    Version(1) < 3
                    assert False, "no number is a version"
                except AttributeError as error:
                    assert "parts" in str(error)
        """,
    ),
    Honest(
        name="names with all letters there are",
        solution="def loud(text):\n    return text.upper()\n",
        tests="""
            import pytest
            from it import loud
            @pytest.mark.parametrize(
                ("text", "expected"), [("a b", "A B"), ("é[x]", "É[X]"), ("::", "::"), ("", "")],
                ids=["with space", "br[ack]et", "co::lon", "empty/é"],
            )
            def test_loud(text, expected):
                assert loud(text) == expected
        """,
    ),
    Honest(
        name="threads, processes and things that are used up",
        solution="""
            import contextlib, multiprocessing
            from concurrent.futures import ThreadPoolExecutor
            def square(n):
                return n * n
            def everywhere(numbers):
                with ThreadPoolExecutor(2) as threads, multiprocessing.Pool(2) as processes:
                    return list(threads.map(square, numbers)), processes.map(square, numbers)
            def count():
                n = 0
                while True:
                    yield n
                    n += 1
            @contextlib.contextmanager
            def noted(notes):
                notes.append("in")
                yield notes
                notes.append("out")
        """,
        tests="""
            from it import count, everywhere, noted
            def test_everywhere():
                assert everywhere([1, 2]) == ([1, 4], [1, 4])
            def test_count():
                numbers = count()
                assert next(numbers) == 0 and next(numbers) == 1
                assert all(next(numbers) == n + 2 for n in range(3))
            def test_noted():
                with noted([]) as notes:
                    assert notes == ["in"]
                assert notes == ["in", "out"]
        """,
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
async def backend() -> AsyncGenerator[SandboxBackend]:
    async with open_native("namespaces") as opened:
        yield opened


def trees(honest: Honest) -> tuple[Tree, Tree]:
    """The workspace as it was, and with the solution in it."""
    contents = {honest.test_file: honest.tests, **dict(honest.others)}
    before = Tree(
        files={PurePosixPath(p): TreeFile(dedent(text).encode()) for p, text in contents.items()}
    )
    return before, before.with_files(
        {PurePosixPath("it.py"): TreeFile(dedent(honest.solution).encode())}
    )


@pytest.mark.slow
@pytest.mark.parametrize("honest", SOLUTIONS, ids=lambda honest: honest.name)
async def test_an_honest_solution_is_proven(honest: Honest, backend: SandboxBackend) -> None:
    before, after = trees(honest)
    protected = tuple(before.files)
    case = VerificationSpec(
        pristine=before, checks=(honest.check,), protected=protected, check_timeout_s=30.0
    )

    verdict = await Verifier(backend, Limits()).verify(case, after)

    assert verdict.grade is Grade.PROVEN, (verdict.reason, verdict.findings, verdict.reports)
    assert not verdict.findings
    assert verdict.tests
    assert all(report.canaries_caught == report.canaries_planted > 3 for report in verdict.reports)


async def test_a_wrong_solution_is_no_forgery(backend: SandboxBackend) -> None:
    """The ordinary case: it does not work, and nobody is accused of anything."""
    before, after = trees(SOLUTIONS[0])
    case = VerificationSpec(pristine=before, checks=("pytest",), protected=tuple(before.files))
    wrongs = {
        "a wrong answer": "def roman(n):\n    return 'I' * n\n",
        "no such name": "pass\n",
        "broken syntax": "def roman(n:\n",
        "an error on import": "1 / 0\n",
    }
    for name, text in wrongs.items():
        wrong = after.with_files({PurePosixPath("it.py"): TreeFile(text.encode())})

        verdict = await Verifier(backend, Limits()).verify(case, wrong)

        assert not verdict.accepted, name
        assert not verdict.tampered, (name, verdict.findings)
        assert not verdict.reports[0].passed, name


async def test_tests_that_a_person_skips_are_not_proven(backend: SandboxBackend) -> None:
    tests = "import pytest\nfrom it import one\ndef test_one(): assert one == 1\n"
    skipped = f"{tests}\n@pytest.mark.skip(reason='later')\ndef test_two(): assert one == 2\n"
    honest = Honest(name="skips", solution="one = 1\n", tests=skipped)
    before, after = trees(honest)
    case = VerificationSpec(pristine=before, checks=("pytest",), protected=tuple(before.files))

    verdict = await Verifier(backend, Limits()).verify(case, after)

    assert verdict.accepted
    assert verdict.grade is Grade.CHECKED
    assert [finding.kind for finding in verdict.findings] == [TamperKind.TESTS_SKIPPED]
    assert "test_two" in verdict.reason
