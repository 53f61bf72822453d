"""Find tests in Python files without running them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from assay.contracts.workspace import Tree

TEST_FILES = ("test_*.py", "*_test.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class TestDefinition:
    """A function that a runner collects as a test."""

    __test__ = False

    scope: tuple[str, ...]
    """The enclosing classes, the outermost first."""
    name: str
    unittest: bool


def is_test_file(path: PurePosixPath, patterns: tuple[str, ...] = TEST_FILES) -> bool:
    """Whether a runner collects tests from this file, by its name."""
    return any(fnmatchcase(path.name, pattern) for pattern in patterns)


def tree_below(folder: PurePosixPath, tree: Tree) -> Tree:
    """Return the files of a folder, by their paths relative to it."""
    if folder == PurePosixPath():
        return tree
    inside = {path: file for path, file in tree.files.items() if folder in path.parents}
    return Tree(files={path.relative_to(folder): file for path, file in inside.items()})


def parse_module(tree: Tree, path: PurePosixPath) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is missing or not Python."""
    file = tree.files.get(path)
    if file is None or path.suffix != ".py":
        return None
    try:
        return ast.parse(file.content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_tests(module: ast.Module) -> Iterator[TestDefinition]:
    """Yield functions that are certainly tests: at the top level, or in a collected class.

    Conditional and inherited tests are left out, because they may not exist at run time.
    """
    yield from _tests_in(module.body, (), unittest=False)


def _tests_in(
    body: list[ast.stmt], scope: tuple[str, ...], *, unittest: bool
) -> Iterator[TestDefinition]:
    if _is_switched_off(body):
        return
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test") and not _is_fixture(node):
                    yield TestDefinition(scope=scope, name=name, unittest=unittest)
            case ast.ClassDef(name=name):
                is_case = unittest or _is_case(node)
                if is_case or (name.startswith("Test") and not _has_init(node)):
                    yield from _tests_in(node.body, (*scope, name), unittest=is_case)
            case _:
                pass


def _is_switched_off(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "__test__" for name in node.targets)
        for node in body
    )


def _is_fixture(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_case(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("TestCase") for base in node.bases)


def _has_init(node: ast.ClassDef) -> bool:
    names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return bool(names & {"__init__", "__new__"})
