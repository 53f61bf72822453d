"""Run the user's pytest or unittest command with a driver that reports the real results.

The runners find the expected tests and the settings; `python_process` runs the driver.
"""

import tomllib
from collections.abc import Iterator
from configparser import ConfigParser, Error
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Grade
from assay.contracts.workspace import Tree
from assay.verify.discovery import find_test_definitions, is_test_file, parse_module, tree_below
from assay.verify.parse_command import read_invocation
from assay.verify.runners.python_process import Conditions, PythonRun, run_python
from assay.verify.spec import CheckSpec, Observation

_WITH_VALUE: Final = frozenset(
    [
        "-p",
        "-c",
        "-o",
        "-r",
        "-W",
        "--rootdir",
        "--confcutdir",
        "--basetemp",
        "--tb",
        "--color",
        "--durations",
        "--junitxml",
        "--junit-xml",
        "--maxfail",
        "--import-mode",
        "--capture",
        "--log-level",
        "--timeout",
        "--cov",
        "--cov-report",
    ]
)
# Options that deselect tests; the files do not show which tests remain.
_SELECTING: Final = (
    "-k", "-m", "--deselect", "--ignore", "--lf", "--last-failed", "--ff", "--sw", "--stepwise",
    "--nf", "--co", "--collect-only", "--pyargs", "--import-mode", "-c", "-o", "--override-ini",
)  # fmt: skip
_STEERING: Final = frozenset(
    {"addopts", "testpaths", "python_files", "python_classes", "python_functions", "norecursedirs"}
)
_SKIPPED_FOLDERS: Final = frozenset({"build", "dist", "node_modules", "venv", "CVS", "_darcs"})


class PytestRunner:
    """Runner for pytest; see `assay.verify.spec.Runner`."""

    name = "pytest"
    most = Grade.PROVEN
    configuration = (
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        ".coveragerc",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        return read_invocation(argv).program == self.name

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        invocation = read_invocation(order.argv)
        args = invocation.arguments
        tree = tree_below(invocation.cwd, tree)
        if any(word.split("=")[0] in _SELECTING or word[:2] in {"-k", "-m"} for word in args):
            return frozenset()
        chosen = tuple(_paths(args))
        # The tests that a configuration selects are not known here; only repeated reports must
        # agree.
        if _STEERING & _settings(tree).keys():
            chosen = tuple(word for word in chosen if word.endswith(".py"))
            if not chosen:
                return frozenset()
        return frozenset(
            name for path in tree.files for name in _expected_in(tree, path, chosen or (".",))
        )

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


def _paths(args: tuple[str, ...]) -> Iterator[str]:
    words = iter(args)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            yield word


def _expected_in(tree: Tree, path: PurePosixPath, chosen: tuple[str, ...]) -> Iterator[str]:
    wanted = [word for word in chosen if _covers(PurePosixPath(word.partition("::")[0]), path)]
    if not wanted or path.suffix != ".py":
        return
    named = any(PurePosixPath(word.partition("::")[0]) == path for word in wanted)
    if not named and (not is_test_file(path) or _is_in_skipped_folder(path)):
        return
    module = parse_module(tree, path)
    for test in find_test_definitions(module) if module else ():
        name = "::".join((str(path), *test.scope, test.name))
        if any(_selects(word, name) for word in wanted):
            yield name


def _covers(folder: PurePosixPath, path: PurePosixPath) -> bool:
    return path == folder or folder in path.parents


def _selects(word: str, name: str) -> bool:
    rest = word.partition("::")[2].partition("[")[0]
    mine = name.partition("::")[2]
    return not rest or mine == rest or mine.startswith(f"{rest}::")


def _is_in_skipped_folder(path: PurePosixPath) -> bool:
    folders = path.parts[:-1]
    return any(part in _SKIPPED_FOLDERS or part.startswith(".") for part in folders)


def _settings(tree: Tree) -> dict[str, Any]:
    """Return the pytest settings of the root files; only the first file with settings counts."""
    for name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"):
        text = tree.text(PurePosixPath(name))
        if text is not None:
            return _toml(text, "pytest") if name.endswith("toml") else _ini(text, "pytest")
    for name, section in (
        ("pyproject.toml", ""),
        ("tox.ini", "pytest"),
        ("setup.cfg", "tool:pytest"),
    ):
        text = tree.text(PurePosixPath(name))
        found = {} if text is None else _ini(text, section) if section else _pyproject(text)
        if found:
            return found
    return {}


def _pyproject(text: str) -> dict[str, Any]:
    pytest = _toml(text, "tool", "pytest")
    return cast("dict[str, Any]", pytest.get("ini_options", pytest))


def _toml(text: str, *keys: str) -> dict[str, Any]:
    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
    for key in keys:
        table = cast("dict[str, Any]", table).get(key) if isinstance(table, dict) else None
    return cast("dict[str, Any]", table) if isinstance(table, dict) else {}


def _ini(text: str, section: str) -> dict[str, Any]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except Error:
        return {}
    return dict(parser.items(section)) if parser.has_section(section) else {}


_SHORT_OPTIONS: Final = ("-v", "-q", "-f", "-b", "-c", "--verbose", "--quiet", "--failfast",
                         "--buffer", "--catch", "--locals")  # fmt: skip


class UnittestRunner:
    """Runner for unittest; see `assay.verify.spec.Runner`."""

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
        ".".join((*prefix, *test.scope, test.name))
        for test in find_test_definitions(module)
        if test.unittest
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
