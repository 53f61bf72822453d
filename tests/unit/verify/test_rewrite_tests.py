"""Rewritten tests mean the same, or the opposite, and look alike."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import isclose
from pathlib import PurePosixPath
from textwrap import dedent

import pytest

from assay.contracts.workspace import Tree, TreeFile
from assay.verify.drivers.canaries import other_than, same_as
from assay.verify.inverted_tests import RewrittenTests, Words, rewrite_tests

PATH = PurePosixPath("tests/test_it.py")
WORDS = Words(tell="_seen", keep="_kept", other="_other")


def rewrite(source: str) -> RewrittenTests:
    tree = Tree(files={PATH: TreeFile(dedent(source).encode())})
    return rewrite_tests(tree, (PurePosixPath("tests"),), words=WORDS, seed=1)


def outcome(text: bytes, name: str, **names: object) -> tuple[str, set[str]]:
    """Run one test; return how it ended, and which assertions it came to."""
    reached: set[str] = set()
    scope: dict[str, object] = {
        "_seen": reached.add, "_kept": same_as, "_other": other_than, "pytest": pytest, **names
    }  # fmt: skip
    exec(text, scope)  # noqa: S102 - written in this file
    test = scope[name]
    assert callable(test)
    try:
        test()
    except BaseException as error:  # noqa: BLE001 - whatever a test can end with
        return type(error).__name__, reached
    return "passed", reached


def add(a: int, b: int) -> int:
    return a + b


ASSERTIONS = {
    "a number": "assert add(1, 2) == 3",
    "a number first": "assert 3 == add(1, 2)",
    "a negative number": "assert add(-1, -2) == -3",
    "a list": "assert [add(1, 2)] == [3]",
    "a computed value": "assert add(1, 2) == add(2, 1)",
    "a product": "assert add(0, 0) == 5 * 0",
    "a name": "expected = 3\n    assert add(1, 2) == expected",
    "no comparison": "assert add(1, 2)",
    "a negation": "assert not add(1, -1)",
    "membership": "assert add(1, 2) in {3, 4}",
    "two claims": "assert add(1, 2) == 3 and add(2, 2) == 4",
    "nearly": "assert add(0.1, 0.2) == pytest.approx(0.3, abs=1e-3)",
    "nothing": "assert [].sort() is None",
    "three sides": "assert add(1, 2) == add(2, 1) == 3",
    "each of many": "assert all(add(n, 1) == n + 1 for n in range(3))",
    "each of none": "assert all(add(n, 1) == n + 1 for n in [])",
    "a member": "assert 'a' in str(add('a', 'b'))",
    "less": "assert abs(add(0.1, 0.2) - 0.3) < 1e-9",
    "more than a negative number": "assert add(1, 2) > -5",
    "between": "assert 0 < add(1, 2) < 5",
    "a fraction": "assert add(Fraction(1, 2), 0) == Fraction(1, 2)",
    "close": "assert isclose(add(0.1, 0.2), 0.3)",
    "in a loop": "for n in range(3):\n        assert add(n, 1) == n + 1",
    "an exception": "with pytest.raises(TypeError):\n        add(1, 'a')",
    "a function that asserts": "check = assert_sum\n    assert_sum(add(1, 2), 3)",
}


def assert_sum(made: int, expected: int) -> None:
    assert made == expected


@pytest.mark.parametrize("name", ASSERTIONS)
def test_what_passes_honestly_passes_rewritten_and_fails_turned(name: str) -> None:
    tests = rewrite(f"def test_it():\n    {ASSERTIONS[name]}\n")
    names: dict[str, Callable[..., object]] = {
        "add": add, "assert_sum": assert_sum, "Fraction": Fraction, "isclose": isclose
    }  # fmt: skip

    ended, reached = outcome(tests.same[PATH].content, "test_it", **names)
    turned, reached_turned = outcome(tests.turned[PATH].content, "test_it", **names)

    assert ended == "passed"
    assert turned != "passed"
    assert reached
    assert reached_turned <= reached


class Yes:
    """Says yes to whatever it is asked."""

    def __eq__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return True

    def __contains__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "source",
    [
        "assert make() == 3",
        "want = make\n    assert make() == want",
        "assert make() == 1 + len([1, 2])",
        "assert make() == 3 and make() == 4",
        "assert all(make() == n + 1 for n in range(3))",
        "assert 'word' in make()",
        "assert make() < 1e-9",
        "assert make() == make() == 3",
    ],
)
def test_what_says_yes_to_everything_passes_turned_tests(source: str) -> None:
    tests = rewrite(f"def test_it():\n    {source}\n")

    turned, _ = outcome(tests.turned[PATH].content, "test_it", make=Yes)

    assert turned == "passed"


VALUES = [
    *(True, 0, -7, 10**30, 1.5, -1e300, float("inf"), 2j, Decimal(3), Fraction(-1, 3)),
    *("", "text", b"", (), (1, 2), [], [[1]], {}, {"a": 1}, set[int](), frozenset({1}), None),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_another_value_is_not_equal_and_mostly_of_the_same_kind(value: object) -> None:
    other = other_than(value)

    assert other != value
    assert type(other) is type(value) or value is None
    assert same_as(value) is value


def test_assertions_that_cannot_but_be_reached_are_known_by_the_test_they_stand_in() -> None:
    tests = rewrite("""
        def test_loop():
            for n in numbers():
                assert n == 1
        def test_within():
            def check(n):
                assert n == 1
            each(check)
        def test_branch():
            if numbers():
                assert numbers() == [1]
        def test_not_to_be_reached():
            for n in ():
                assert False
    """)

    assert {name for name, numbers in tests.within.items() if numbers} == {
        "test_loop",
        "test_within",
    }


def test_a_name_that_a_test_without_assertions_shares_says_nothing() -> None:
    tests = rewrite("""
        class TestOne:
            def test_it(self):
                assert add(1, 1) == 2
        class TestOther:
            def test_it(self):
                add(1, 1)
    """)

    assert tests.within == {}


def test_parameters_that_are_only_expected_are_changed() -> None:
    tests = rewrite("""
        @pytest.mark.parametrize(("a", "total"), [(1, 2), (2, 3)])
        def test_it(a, total):
            assert add(a, 1) == total
    """)

    text = tests.turned[PATH].content.decode()

    assert "(1, 2)" not in text
    assert "assert add(a, 1) == total" in text
    assert tests.constants == {"1"}


def test_a_parameter_that_is_also_given_stays_as_it_is() -> None:
    tests = rewrite("""
        @pytest.mark.parametrize("text", ["a", "b"])
        def test_it(text):
            assert decode(encode(text)) == text
    """)

    assert "['a', 'b']" in tests.turned[PATH].content.decode()


def test_what_a_test_catches_itself_is_left_alone() -> None:
    tests = rewrite("""
        def test_it():
            try:
                assert add(1, 2) == 4
            except AssertionError:
                pass
    """)

    assert tests.same == tests.turned


def test_both_versions_differ_from_the_original_in_the_same_places() -> None:
    tests = rewrite("# a comment\ndef test_it():\n    assert add(1, 2) == 3\n")

    same, turned = (v[PATH].content.decode() for v in (tests.same, tests.turned))

    assert "comment" not in same + turned
    assert same.count("_seen") == turned.count("_seen") == 1
    assert len(same.splitlines()) == len(turned.splitlines())


def test_files_that_are_no_python_are_left_as_they_are() -> None:
    tree = Tree(files={PurePosixPath("tests/a.txt"): TreeFile(b"x"), PATH: TreeFile(b"def (")})

    tests = rewrite_tests(tree, (PurePosixPath("tests"),), words=WORDS, seed=1)

    assert not tests.same
    assert not tests.turned
