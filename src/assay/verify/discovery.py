"""Find the tests of a workspace, and the commands that run given test files.

It uses only conventions: names, folders and build files. Python files are parsed for their test
functions and methods. No code runs.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
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
_LANGUAGES: Final[Mapping[str, frozenset[str]]] = {
    "Python": frozenset({".py"}),
    "JavaScript": _JAVASCRIPT,
    "Rust": frozenset({".rs"}),
    "Go": frozenset({".go"}),
    "C++": frozenset({".c", ".cc", ".cpp", ".cxx"}),
    "Java": frozenset({".java", ".kt", ".groovy", ".scala"}),
    "shell": frozenset({".sh"}),
}
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


def checks_for(tests: _Paths, tree: Tree, *, required: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the commands that run these test files, or the required tests of a file.

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
    for language, suffixes in _LANGUAGES.items():
        own = tuple(path for path in runnable if path.suffix in suffixes)
        unknown.difference_update(own)
        if own:
            commands.extend(_commands_for(language, own, tree, required))
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


def _command(words: Iterable[str], folder: PurePosixPath = PurePosixPath()) -> str:
    where = f"cd {shlex.quote(str(folder))} && " if folder.parts else ""
    return where + shlex.join(words)


def _commands_for(
    language: str, paths: _Paths, tree: Tree, required: tuple[str, ...]
) -> Iterator[str]:
    """Yield the commands that run test files of one language."""
    match language:
        case "Python":
            yield _command(("pytest", *(word for path in paths for word in _ids(path, required))))
        case "shell":
            yield from (_command(("bash", str(path))) for path in paths)
        case "JavaScript":
            for folder, own in _by_project(paths, tree, "package.json", required=False).items():
                yield _javascript(own, folder, tree)
        case "Rust":
            ignored = any(_IGNORED_RUST.search(tree.text(path) or "") for path in paths)
            words = ("cargo", "test", "--", "--include-ignored") if ignored else ("cargo", "test")
            yield from (
                _command(words, folder) for folder in _by_project(paths, tree, "Cargo.toml")
            )
        case "Go":
            for folder in _by_project(paths, tree, "go.mod"):
                yield _command(("go", "test", "./..."), folder)
        case "C++":
            for folder in _by_project(paths, tree, "CMakeLists.txt"):
                yield _command(("ctest",), folder)
        case _:
            marks = ("gradlew", "build.gradle", "build.gradle.kts", "pom.xml")
            for folder in _by_project(paths, tree, *marks):
                program = "mvn" if folder / "pom.xml" in tree.files else "gradle"
                program = "./gradlew" if folder / "gradlew" in tree.files else program
                yield _command((program, "--offline", "test"), folder)


def _ids(path: PurePosixPath, required: tuple[str, ...]) -> tuple[str, ...]:
    """Return the required test IDs of a file, or the file itself if it is required as a whole."""
    named = tuple(word for word in required if word.startswith(f"{path}::"))
    return (str(path),) if not named or str(path) in required else named


def _by_project(
    paths: _Paths, tree: Tree, *marks: str, required: bool = True
) -> Mapping[PurePosixPath, _Paths]:
    """Return the files, grouped by the innermost parent folder that has one of these files.

    Raises:
        UsageError: If a file has no such folder, and it is required.
    """
    grouped: dict[PurePosixPath, _Paths] = {}
    for path in paths:
        projects = (
            folder for folder in path.parents if any(folder / mark in tree.files for mark in marks)
        )
        project = next(projects, None if required else PurePosixPath())
        if project is None:
            raise UsageError(
                f"there is no {' or '.join(marks)} above {str(path)!r}",
                hint=f"add one, or {_HINT}",
            )
        grouped[project] = (*grouped.get(project, ()), path)
    return grouped


def _javascript(tests: _Paths, folder: PurePosixPath, tree: Tree) -> str:
    package = read_package(tree, folder)
    named = tuple(str(path.relative_to(folder)) for path in tests)
    if not all(_NODE_TEST.search(tree.text(path) or "") for path in tests):
        if _wants_jest(package, folder, tests, tree):
            return _command(("npx", "jest", *named), folder)
        if "test" in table_of(package, "scripts"):
            return _command(("npm", "test"), folder)
    if all(path.suffix in _PLAIN_JAVASCRIPT for path in tests):
        return _command(("node", "--test", *named), folder)
    raise UsageError(
        f"no way is known to run {named[0]!r} as a test",
        hint="add a test script to package.json, for example with jest",
    )


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
    stored = (name for node in body if isinstance(node, ast.Assign) for name in node.targets)
    if any(isinstance(name, ast.Name) and name.id == "__test__" for name in stored):
        return
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                fixture = any("fixture" in ast.unparse(mark) for mark in node.decorator_list)
                if name.startswith("test") and not fixture:
                    yield TestDefinition(scope=scope, name=name, unittest=unittest)
            case ast.ClassDef(name=name):
                is_case = unittest or _is_case(node)
                if is_case or (name.startswith("Test") and not _has_init(node)):
                    yield from _tests_in(node.body, (*scope, name), unittest=is_case)
            case _:
                pass


def _is_case(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith("TestCase") for base in node.bases)


def _has_init(node: ast.ClassDef) -> bool:
    names = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return bool(names & {"__init__", "__new__"})
