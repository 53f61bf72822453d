"""Files that decide when a command is run are known, in whatever form it names them."""

from pathlib import PurePosixPath

import pytest

from assay.contracts.workspace import Tree, TreeFile
from assay.verify.parse_command import find_deciders

PACKAGE = b'{"scripts": {"pretest": "node build.js", "test": "sh run.sh > log", "e2e": "./e2e.sh"}}'
TREE = Tree(
    files={
        PurePosixPath(name): TreeFile(PACKAGE if name.endswith("package.json") else b"")
        for name in (
            *("check.sh", "run.sh", "sub/check.py", "sub/main.py", "tools/check.py"),
            *("tools/__init__.py", "kit/__main__.py", "kit/__init__.py", "main.py", "main.c"),
            *("checks/a.sh", "checks/b.sh", "expected.txt", "build.js", "e2e.sh", "checksum.py"),
            *("package.json", "web/package.json"),
        )
    }
)


def deciders(command: str, *wanted: str) -> set[str]:
    meant = frozenset(map(PurePosixPath, wanted))
    return {str(path) for path in find_deciders(command, TREE, wanted=meant)}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("./check.sh && echo ok", {"check.sh"}),
        ("bash ./check.sh", {"check.sh"}),
        ("sub/../check.sh | grep -q PASS", {"check.sh"}),
        ("set -e; X=1 timeout 5 ./run.sh", {"run.sh"}),
        ("if ./run.sh; then true; fi", {"run.sh"}),
        ("cd sub && python check.py", {"sub/check.py"}),
        ("cd sub && python main.py", {"sub/main.py"}),
        ("env --chdir=sub python main.py", {"sub/main.py"}),
        ("(cd sub; python -B check.py) > log", {"sub/check.py"}),
        ("python -m tools.check", {"tools/check.py"}),
        ("uv run python -m kit", {"kit/__main__.py", "kit/__init__.py"}),
        ("for f in checks/*.sh; do sh $f; done", {"checks/a.sh", "checks/b.sh"}),
        ("bash -c './check.sh; true'", {"check.sh"}),
        ("cd web && npm run lint", {"web/package.json"}),
        ("npm test", {"package.json", "build.js"}),
        ("yarn e2e && true", {"package.json", "e2e.sh"}),
        ("python main.py | diff - expected.txt", {"expected.txt"}),
        ("python 'unfinished", set[str]()),
    ],
)
def test_what_decides_is_found(command: str, expected: set[str]) -> None:
    assert deciders(command) == expected


@pytest.mark.parametrize(
    "command",
    [
        "python main.py | grep -q 42",
        "python checksum.py < main.c > log && test -s log",
        "cc *.c -o app && ./app",
        "grep -q 42 main.py; grep -c x main.c",
        "ruff check *.py && true",
    ],
)
def test_what_is_judged_does_not_decide(command: str) -> None:
    assert not deciders(command)


def test_what_the_goal_speaks_of_may_be_written_unless_it_is_called_a_check() -> None:
    assert not deciders("./run.sh && true", "run.sh")
    assert not deciders("npm run lint", "package.json")
    assert deciders("./check.sh && true", "check.sh") == {"check.sh"}


@pytest.mark.parametrize(
    "package", [b'{"scripts": ["x"]}', b"[]", b'{"scripts": {"test": 1}}', b"{"]
)
def test_a_package_that_makes_no_sense_decides_all_the_same(package: bytes) -> None:
    path = PurePosixPath("package.json")
    tree = Tree(files={path: TreeFile(package)})

    assert [*find_deciders("npm test", tree, wanted=frozenset())] == [path]
