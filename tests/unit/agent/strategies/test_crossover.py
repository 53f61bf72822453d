from pathlib import PurePosixPath

import pytest

from assay.agent.steps.code import mixed_sources, mixtures
from assay.agent.target_files import source_of
from assay.contracts.workspace import Tree, TreeFile

GOOD_ADD = "def add(a, b):\n    return a + b\n"
BAD_ADD = "def add(a, b):\n    return 0\n"
GOOD_SUB = "def sub(a, b):\n    return a - b\n"
BAD_SUB = "def sub(a, b):\n    return 1\n"


def results_of(source: str) -> tuple[int, int]:
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102 - what the mixture does is what counts
    return names["add"](2, 1), names["sub"](2, 1)  # type: ignore[operator]


def test_two_half_right_modules_make_a_right_one() -> None:
    mixed = list(mixed_sources(f"{GOOD_ADD}\n\n{BAD_SUB}", f"{BAD_ADD}\n\n{GOOD_SUB}"))

    assert (3, 1) in [results_of(source) for source in mixed]


def test_imports_come_along() -> None:
    theirs = f"import math\n\n\n{BAD_ADD}\n\ndef sub(a, b):\n    return math.floor(a - b)\n"

    mixed = list(mixed_sources(f"{GOOD_ADD}\n\n{BAD_SUB}", theirs))

    assert (3, 1) in [results_of(source) for source in mixed]


def test_methods_are_mixed_too() -> None:
    mine = "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 0\n"
    theirs = "class A:\n    def f(self):\n        return 0\n\n    def g(self):\n        return 2\n"
    found = set()

    for source in mixed_sources(mine, theirs):
        names: dict[str, object] = {}
        exec(source, names)  # noqa: S102 - as above
        thing = names["A"]()  # type: ignore[operator]
        found.add((thing.f(), thing.g()))

    assert (1, 2) in found


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (GOOD_ADD, GOOD_ADD),
        (GOOD_ADD, BAD_ADD),
        (GOOD_ADD, GOOD_SUB),
        ("def broken(", GOOD_ADD),
        (GOOD_ADD, "def broken("),
        ("", ""),
    ],
)
def test_there_is_nothing_to_mix(mine: str, theirs: str) -> None:
    assert list(mixed_sources(mine, theirs)) == []


def test_only_files_that_both_have_are_mixed() -> None:
    path, other = PurePosixPath("a.py"), PurePosixPath("b.txt")
    one = Tree(files={path: TreeFile(f"{GOOD_ADD}\n\n{BAD_SUB}".encode()), other: TreeFile(b"x")})
    two = Tree(files={path: TreeFile(f"{BAD_ADD}\n\n{GOOD_SUB}".encode())})

    mixed = list(mixtures(one, two, (path, other, PurePosixPath("c.py"))))

    assert len(mixed) == 2
    assert all(tree.files[other].content == b"x" for tree in mixed)


def test_the_source_of_a_test_is_found() -> None:
    text = "import x\n\n\n@mark\ndef test_a(n):\n    assert n\n\n\ndef test_b():\n    pass\n"
    tree = Tree(files={PurePosixPath("tests/test_x.py"): TreeFile(text.encode())})

    assert source_of("tests/test_x.py::test_a[1]", tree) == "@mark\ndef test_a(n):\n    assert n"
    assert source_of("tests/test_x.py::test_c", tree) == ""
    assert source_of("nowhere.py::test_a", tree) == ""
    assert source_of("just words", tree) == ""
