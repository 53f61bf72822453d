"""What is asked for becomes a goal, with its tests named one by one."""

from pathlib import PurePosixPath

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.goal import RunRequest
from assay.contracts.workspace import Tree, TreeFile, Withheld
from assay.runs.request import resolve_request

TESTS = RunRequest(goal="x", tests=("tests",))


def tree(*withheld: Withheld) -> Tree:
    return Tree(files={PurePosixPath("tests/test_a.py"): TreeFile(b"")}, withheld=withheld)


@pytest.mark.parametrize("name", ["test_keys.py", "conftest.py", "unit/keys.test.ts"])
def test_a_folder_of_tests_does_not_lack_a_withheld_one_in_silence(name: str) -> None:
    one = Withheld(path=PurePosixPath("tests") / name, why="holds a private key")

    with pytest.raises(UsageError, match=f"{name}', which is withheld: holds") as raised:
        resolve_request(TESTS, tree(one))

    assert (
        raised.value.hint == f"add --include 'tests/{name}' to use it, or --exclude 'tests/{name}'"
    )


def test_data_beside_tests_and_what_git_ignores_may_be_withheld() -> None:
    request = resolve_request(
        TESTS,
        tree(
            Withheld(path=PurePosixPath("tests/certs/server.key"), why="holds a private key"),
            Withheld(path=PurePosixPath("tests/test_mine.py"), why="ignored by git"),
            Withheld(path=PurePosixPath("other/test_keys.py"), why="holds a private key"),
        ),
    )

    assert request.tests == ("tests/test_a.py",)
