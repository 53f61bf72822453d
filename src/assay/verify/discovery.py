"""Find the tests of a workspace, and the commands that run given test files.

It uses only conventions: names, folders and build files. Python files are parsed for their test
functions and methods. No code runs.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final

from assay.contracts.errors import UsageError
from assay.contracts.workspace import Tree
from assay.verify.parse_command import read_package, table_of

_Paths = tuple[PurePosixPath, ...]

_TEST_NAMES: Final = re.compile(
    r"test_.*\.py|.*_tests?\.py|tests?\.py"
    r"|.*[._-](?:test|spec)\.[cm]?[jt]sx?|test\.[cm]?[jt]s|test[-_].*\.[cm]?js"
    r"|.*_test\.go"
    r"|.*_tests?\.rs"
    r"|(?:test_.*|.*_tests?|tests?)\.(?:c|cc|cpp|cxx)"
    r"|(?:Test.*|.*Tests?|.*IT)\.(?:java|kt)"
    r"|.*_(?:test|spec)\.rb|test_.*\.(?:rb|sh)|.*_test\.sh|.*\.bats"
)
_TEST_FOLDERS: Final = frozenset({"tests", "test", "__tests__"})
_FOREIGN: Final = frozenset(
    {
        ".git", ".hg", ".tox", ".nox", ".venv", "venv", "__pycache__", ".pytest_cache",
        "node_modules", "bower_components", "vendor", "third_party", "site-packages",
        "target", "build", "dist", ".gradle", ".eggs",
    }
)  # fmt: skip
_SUPPORT: Final = frozenset({"conftest.py", "__init__.py"})
_JAVASCRIPT: Final = frozenset({".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".mts", ".cts"})
_PLAIN_JAVASCRIPT: Final = frozenset({".js", ".mjs", ".cjs"})
_NATIVE: Final = frozenset({".c", ".cc", ".cpp", ".cxx"})
_JVM: Final = frozenset({".java", ".kt", ".groovy", ".scala"})
_JEST_CONFIGURATION: Final = tuple(
    f"jest.config.{ending}" for ending in ("js", "cjs", "mjs", "ts", "cts", "json")
)
_NODE_TEST: Final = re.compile(r"""(?:from|require\(|import)\s*['"](?:node:)?test['"]""")
_IGNORED_RUST: Final = re.compile(r"^\s*#\[ignore\b", re.MULTILINE)
_HINT: Final = "give the command that runs them as a check"


def find_tests(tree: Tree) -> _Paths:
    """Return the files that are tests by convention, and the files next to them."""
    return tuple(sorted(path for path in tree.files if _is_of_tests(path)))


def _is_of_tests(path: PurePosixPath) -> bool:
    folders = path.parts[:-1]
    if not _FOREIGN.isdisjoint(folders):
        return False
    return not _TEST_FOLDERS.isdisjoint(folders) or bool(_TEST_NAMES.fullmatch(path.name))


def checks_for(tests: _Paths, tree: Tree) -> tuple[str, ...]:
    """Return the commands that run these test files.

    Data and support files among them need no separate command.

    Raises:
        UsageError: If there are files, but none of them can be run as a test here.
    """
    if not tests:
        return ()
    # If some files have test names, the others are their support files.
    named = tuple(path for path in tests if _is_named(path))
    runnable = named or tuple(path for path in tests if path.name not in _SUPPORT)
    commands: list[str] = []
    unknown = set(named or runnable[:1] or tests[:1])
    for suffixes, how in _LANGUAGES:
        own = tuple(path for path in runnable if path.suffix in suffixes)
        unknown.difference_update(own)
        if own:
            commands.extend(how(own, tree))
    if unknown:
        raise UsageError(
            f"no way is known to run {str(min(unknown))!r} as a test",
            hint=f'{_HINT}, for example "make test"',
        )
    return tuple(dict.fromkeys(commands))


def _is_named(path: PurePosixPath) -> bool:
    if path.suffix == ".rs" and path.parent.name == "tests":
        return True
    if path.suffix in _JAVASCRIPT and "__tests__" in path.parts:
        return True
    return bool(_TEST_NAMES.fullmatch(path.name))


def _command(words: Iterable[str], *, folder: PurePosixPath = PurePosixPath()) -> str:
    where = f"cd {shlex.quote(str(folder))} && " if folder.parts else ""
    return where + shlex.join(words)


def _python(paths: _Paths, tree: Tree) -> tuple[str, ...]:
    del tree
    return (_command(("pytest", *map(str, paths))),)


def _by_project(
    paths: _Paths, tree: Tree, *, marks: tuple[str, ...]
) -> Mapping[PurePosixPath | None, _Paths]:
    """Return the files, grouped by the innermost parent folder that has one of these files."""
    grouped: dict[PurePosixPath | None, _Paths] = {}
    for path in paths:
        project = next(
            (
                folder
                for folder in path.parents
                if any(folder / mark in tree.files for mark in marks)
            ),
            None,
        )
        grouped[project] = (*grouped.get(project, ()), path)
    return grouped


def _project_command(
    *words: str, marks: tuple[str, ...]
) -> Callable[[_Paths, Tree], tuple[str, ...]]:
    """Return the command that runs all tests of a project."""

    def commands(paths: _Paths, tree: Tree) -> tuple[str, ...]:
        found: list[str] = []
        for project, own in _by_project(paths, tree, marks=marks).items():
            if project is None:
                raise UsageError(
                    f"there is no {' or '.join(marks)} above {str(own[0])!r}",
                    hint=f"add one, or {_HINT}",
                )
            found.append(_command(words, folder=project))
        return tuple(found)

    return commands


def _rust(paths: _Paths, tree: Tree) -> tuple[str, ...]:
    commands = _project_command("cargo", "test", marks=("Cargo.toml",))(paths, tree)
    if any(_IGNORED_RUST.search(tree.text(path) or "") for path in paths):
        return tuple(f"{command} -- --include-ignored" for command in commands)
    return commands


def _jvm(paths: _Paths, tree: Tree) -> tuple[str, ...]:
    marks = ("gradlew", "build.gradle", "build.gradle.kts", "pom.xml")
    commands: list[str] = []
    for project, own in _by_project(paths, tree, marks=marks).items():
        if project is None:
            return _project_command(marks=marks)(own, tree)
        if project / "gradlew" in tree.files:
            words = ("./gradlew", "--offline", "test")
        elif project / "pom.xml" in tree.files:
            words = ("mvn", "--offline", "test")
        else:
            words = ("gradle", "--offline", "test")
        commands.append(_command(words, folder=project))
    return tuple(commands)


def _shell(paths: _Paths, tree: Tree) -> tuple[str, ...]:
    del tree
    return tuple(_command(("bash", str(path))) for path in paths)


def _javascript(paths: _Paths, tree: Tree) -> tuple[str, ...]:
    commands: list[str] = []
    for project, own in _by_project(paths, tree, marks=("package.json",)).items():
        folder = project or PurePosixPath()
        package = read_package(tree, folder)
        named = tuple(str(path.relative_to(folder)) for path in own)
        builtin = all(_NODE_TEST.search(tree.text(path) or "") for path in own)
        if not builtin and _wants_jest(package, folder, own, tree):
            commands.append(_command(("npx", "jest", *named), folder=folder))
        elif not builtin and "test" in table_of(package, "scripts"):
            commands.append(_command(("npm", "test"), folder=folder))
        elif all(path.suffix in _PLAIN_JAVASCRIPT for path in own):
            commands.append(_command(("node", "--test", *named), folder=folder))
        else:
            raise UsageError(
                f"no way is known to run {named[0]!r} as a test",
                hint="add a test script to package.json, for example with jest",
            )
    return tuple(commands)


def _wants_jest(
    package: Mapping[str, Any], folder: PurePosixPath, tests: _Paths, tree: Tree
) -> bool:
    script = table_of(package, "scripts").get("test", "")
    if isinstance(script, str) and script.strip():
        return bool(re.search(r"(?:^|[\s/])jest\b", script))
    declared = {**table_of(package, "dependencies"), **table_of(package, "devDependencies")}
    return (
        "jest" in declared
        or "jest" in package
        or any(folder / name in tree.files for name in _JEST_CONFIGURATION)
        # Only jest provides `expect` without an import.
        or (not package and any(_uses_jest_globals(tree.text(path) or "") for path in tests))
    )


def _uses_jest_globals(text: str) -> bool:
    return "expect(" in text and not re.search(r"\bexpect\b[^\n(]*(?:from|=\s*require)", text)


_LANGUAGES: Final[tuple[tuple[frozenset[str], Callable[[_Paths, Tree], tuple[str, ...]]], ...]] = (
    (frozenset({".py"}), _python),
    (_JAVASCRIPT, _javascript),
    (frozenset({".rs"}), _rust),
    (frozenset({".go"}), _project_command("go", "test", "./...", marks=("go.mod",))),
    (_NATIVE, _project_command("ctest", marks=("CMakeLists.txt",))),
    (_JVM, _jvm),
    (frozenset({".sh"}), _shell),
)

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


def find_test_definitions(module: ast.Module) -> Iterator[TestDefinition]:
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
