"""Run the user's unittest command with a driver that reports the real results."""

from pathlib import PurePosixPath
from typing import Final

from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Grade
from assay.contracts.workspace import Tree
from assay.verify.parse_command import read_invocation
from assay.verify.python_tests import (
    find_tests,
    is_test_file,
    parse_module,
    tree_below,
)
from assay.verify.runner import CheckSpec, Observation
from assay.verify.runners.python_process import Conditions, PythonRun, run_python

_SHORT_OPTIONS: Final = ("-v", "-q", "-f", "-b", "-c", "--verbose", "--quiet", "--failfast",
                         "--buffer", "--catch", "--locals")  # fmt: skip


class UnittestRunner:
    """Runner for unittest; see `assay.verify.runner.Runner`."""

    name = "unittest"
    most = Grade.PROVEN
    configuration = ("setup.cfg", "pyproject.toml", ".coveragerc")

    def understands(self, argv: tuple[str, ...]) -> bool:
        return read_invocation(argv).program == self.name

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        invocation = read_invocation(order.argv)
        tree = tree_below(invocation.cwd, tree)
        words = [word for word in invocation.arguments if word not in _SHORT_OPTIONS]
        # A folder, pattern or name filter: the files do not show which tests remain.
        if any(word.startswith("-") for word in words):
            return frozenset()
        if words in ([], ["discover"]):
            paths = [path for path in tree.files if is_test_file(path, ("test*.py",))]
            return frozenset(
                name for path in paths if _is_reached(tree, path) for name in _ids(tree, path)
            )
        return frozenset(name for word in words for name in _ids_named(tree, word))

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        return (await self.run_under(Conditions(), order, sandbox, on_output=on_output)).observation

    async def run_under(
        self,
        conditions: Conditions,
        order: CheckSpec,
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> PythonRun:
        """Run the check under other conditions."""
        return await run_python(
            self.name, order, sandbox, conditions=conditions, on_output=on_output
        )


def _is_reached(tree: Tree, path: PurePosixPath) -> bool:
    """Whether discovery finds a file: it enters only packages."""
    folders = list(path.parents)[:-1]
    return all(folder / "__init__.py" in tree.files for folder in folders)


def _ids(tree: Tree, path: PurePosixPath) -> frozenset[str]:
    module = parse_module(tree, path)
    if module is None:
        return frozenset()
    prefix = path.with_suffix("").parts
    return frozenset(
        ".".join((*prefix, *test.scope, test.name)) for test in find_tests(module) if test.unittest
    )


def _ids_named(tree: Tree, word: str) -> frozenset[str]:
    """Return the IDs of a module, class or method by its dotted name, or of a file by its path."""
    if word.endswith(".py"):
        return _ids(tree, PurePosixPath(word))
    parts = word.split(".")
    for count in range(len(parts), 0, -1):
        path = PurePosixPath(*parts[:count]).with_suffix(".py")
        if path in tree.files:
            names = _ids(tree, path)
            return frozenset(n for n in names if n == word or n.startswith(f"{word}."))
    return frozenset()
