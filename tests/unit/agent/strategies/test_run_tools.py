"""Named tests narrow a pytest command; every other command stays whole."""

from pathlib import PurePosixPath

import pytest

from assay.agent.strategies.run_tools import narrowed
from assay.contracts.workspace import Tree, TreeFile

TREE = Tree(
    files={
        PurePosixPath(path): TreeFile(b"")
        for path in ("tests/test_a.py", "tests/test_b.py", "pytest.ini", "src/a.py")
    }
)
ONE = "tests/test_a.py::test_one"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pytest", f"pytest {ONE}"),
        ("pytest -q tests", f"pytest -q {ONE}"),
        ("pytest --cov=src tests/test_b.py::test_two -x", f"pytest --cov=src -x {ONE}"),
        ("pytest -c pytest.ini tests", f"pytest -c pytest.ini {ONE}"),
        ("python3 -m pytest tests", f"python3 -m pytest {ONE}"),
        ("PYTHONPATH=src pytest tests", f"env PYTHONPATH=src pytest {ONE}"),
        ("cd tests && pytest", "cd tests && pytest"),
        ("sh check.sh", "sh check.sh"),
        ("node --test", "node --test"),
    ],
)
def test_a_command_for_one_test(command: str, expected: str) -> None:
    assert narrowed(command, (ONE,), TREE) == expected


@pytest.mark.parametrize("names", [(), ("test_one",), ("tests/missing.py::test_one",)])
def test_without_an_id_of_a_file_the_command_stays_whole(names: tuple[str, ...]) -> None:
    assert narrowed("pytest tests", names, TREE) == "pytest tests"
