"""The files of a run: files to write, files that tests import, and the rules for changes.

Files to write are named by the allowed globs or the goal, or are stubs that the tests import. The
rules for changes are stated in the prompt and enforced by the verifier.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from assay.agent.edits.apply import MayChange
from assay.contracts.goal import RunSpec
from assay.contracts.workspace import Tree, TreeFile
from assay.text.globs import matches
from assay.verify.missing_modules import is_third_party

_PATH_IN_WORDS: Final = re.compile(
    r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:py|js|mjs|cjs|ts|jsx|tsx|go|rs|c|cc|cpp|h|hpp|java|rb|sh|"
    r"md|txt|html|css|sql|toml|yaml|yml))(?![\w/])"
)
_PATH_IN_TESTS: Final = re.compile(r"""["']((?:[\w-]+/)*[\w-]+\.(?:py|js|mjs|cjs|sh))["']""")
_JS_IMPORT: Final = re.compile(r"""(?:require\(\s*|from\s+|import\s+)["'](\.{1,2}/[^"']+)["']""")
_NOT_OURS: Final = frozenset(
    {"pytest", "hypothesis", "numpy", "pandas", "matplotlib", "sklearn", "scipy", "conftest"}
)
_DOTTED: Final = re.compile(r"(?<![\w./])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){1,8}")
_PACKAGE: Final = re.compile(r"(?<![\w/.-])(?:[\w-]+/)*package\.json")
_WILD: Final = frozenset("*?[")
_MOST: Final = 6
_MOST_IMPORTED: Final = 64
_STUB_CHARS: Final = 4_000
_STUB_MARK: Final = re.compile(
    r"\b(?:todo|unimplemented)!\(|not (?:yet )?implemented|please implement"
    r"|(?:remove|delete) this (?:line|statement)",
    re.IGNORECASE,
)
_NO_CODE: Final = (ast.Pass, ast.Expr, ast.Raise, ast.Import, ast.ImportFrom)
"""Statements of a function or module that is still to be written."""


def find_targets(
    statement: str,
    tree: Tree,
    *,
    tests: tuple[PurePosixPath, ...],
    protected: tuple[PurePosixPath, ...],
    allowed: tuple[str, ...],
    guess: bool,
) -> tuple[PurePosixPath, ...]:
    """Return the files that the run will write, the most likely first; may be empty.

    They are named by the allowed globs or the goal, or are stubs that the tests import. With
    `guess`, all files that the tests import count: models that reply with whole files need them.
    """
    named = [PurePosixPath(glob) for glob in allowed if not _WILD & set(glob)]
    if named:
        return tuple(dict.fromkeys(named))
    wanted = find_imported(tests, tree)
    found = dict.fromkeys(path for path in wanted if guess or is_stub(path, tree))
    imported = bool(found)
    for written in _in_words(statement):
        path = in_tree(written, tree) or written
        # Existing text files are input; files that the tests import are output.
        if path.suffix in {".txt", ".md"} and (imported or path in tree.files):
            continue
        found.setdefault(path)
    return tuple(path for path in found if path not in protected)[:_MOST]


def find_imported(tests: tuple[PurePosixPath, ...], tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the first files that tests import or start, in the tests' order.

    A module that is missing counts unless it belongs to a package of others.
    """
    found: dict[PurePosixPath, None] = {}
    foreign: dict[str, bool] = {}
    for path in (path for test in tests for path in _wanted_by(test, tree)):
        top = path.parts[0].removesuffix(".py") if path.suffix == ".py" else ""
        if top and path not in tree.files:
            if top not in foreign:
                foreign[top] = is_third_party(top, tree)
            if foreign[top]:
                continue
        found.setdefault(path)
        # The tests of a large repository import thousands of files.
        if len(found) >= _MOST_IMPORTED:
            break
    return tuple(found)


def in_tree(written: PurePosixPath, tree: Tree) -> PurePosixPath | None:
    """Return the file that a path names in full, or by its end if only one file ends so."""
    if written in tree.files:
        return written
    ends = written.parts
    found = [path for path in tree.files if path.parts[-len(ends) :] == ends]
    return found[0] if len(found) == 1 else None


def is_stub(path: PurePosixPath, tree: Tree) -> bool:
    """Whether a file exists and its functions are still to be written."""
    text = tree.text(path)
    if text is None or len(text) > _STUB_CHARS or path.name == "__init__.py":
        return False
    if path.suffix != ".py":
        return bool(_STUB_MARK.search(text))
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return False
    functions = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if functions:
        return all(isinstance(part, _NO_CODE) for node in functions for part in node.body)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    rest = [node for node in module.body if not isinstance(node, ast.ClassDef)]
    rest += [part for node in classes for part in node.body]
    return all(isinstance(node, _NO_CODE) for node in rest)


def only_imported(tests: tuple[PurePosixPath, ...], tree: Tree) -> frozenset[PurePosixPath]:
    """Return the Python files that tests import and do not name in any other way."""
    imported: set[PurePosixPath] = set()
    named: set[PurePosixPath] = set()
    for test in tests:
        text = tree.text(test)
        if text is not None and test.suffix == ".py":
            imported.update(_wanted_by_python(test, tree))
            named.update(PurePosixPath(match.group(1)) for match in _PATH_IN_TESTS.finditer(text))
    return frozenset(imported - named)


def names_wanted(
    tests: tuple[PurePosixPath, ...], target: PurePosixPath, tree: Tree
) -> tuple[str, ...]:
    """Return the names that Python tests import from a file, which it has to define."""
    names: dict[str, None] = {}
    word = module_word(target)
    for test in tests:
        # Parsing takes far longer than the search for the word that every such import has.
        if not is_python_with(word, tree.files.get(test), test):
            continue
        for module, imported in _imports_of(tree.files[test]):
            if imported and module_file(module, test, tree) == target:
                names.update(dict.fromkeys(imported))
    return tuple(name for name in names if name != "*")


def named_in_words(statement: str) -> frozenset[PurePosixPath]:
    """Return the files that a goal names."""
    return frozenset((*_in_words(statement), *map(PurePosixPath, _PACKAGE.findall(statement))))


def modules_in_words(statement: str, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the Python modules that a goal names with dots, such as `package.module.function`."""
    found: dict[PurePosixPath, None] = {}
    for match in _DOTTED.finditer(statement):
        parts = match[0].split(".")
        for kept in (parts, parts[:-1]):
            path = PurePosixPath(*kept).with_suffix(".py")
            if path in tree.files or (path := "src" / path) in tree.files:
                found.setdefault(path)
    return tuple(found)


def _in_words(statement: str) -> Iterator[PurePosixPath]:
    for match in _PATH_IN_WORDS.finditer(statement):
        yield PurePosixPath(match.group(1))


def _wanted_by(test: PurePosixPath, tree: Tree) -> Iterator[PurePosixPath]:
    text = tree.text(test)
    if text is None:
        return
    if test.suffix == ".py":
        yield from _wanted_by_python(test, tree)
        for match in _PATH_IN_TESTS.finditer(text):
            yield PurePosixPath(match.group(1))
    elif test.suffix in {".js", ".mjs", ".cjs", ".ts"}:
        for match in _JS_IMPORT.finditer(text):
            yield _resolved(test, match.group(1), tree)


def _wanted_by_python(test: PurePosixPath, tree: Tree) -> Iterator[PurePosixPath]:
    for module, names in _imports_of(tree.files[test]):
        inner = [module_file(f"{module}.{name}", test, tree) for name in names]
        modules = [path for path in inner if path in tree.files]
        # `from package import module` wants the module, everything else the package.
        if len(modules) < len(names) or not names:
            modules.append(module_file(module, test, tree))
        yield from filter(None, modules)


@lru_cache(maxsize=4096)
def _imports_of(file: TreeFile) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the absolute imports of a file: each module, and the names taken from it."""
    try:
        module = ast.parse(file.content.decode())
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found.extend((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module, tuple(alias.name for alias in node.names)))
    return tuple(found)


def module_word(path: PurePosixPath) -> bytes:
    """Return the last name of a module, which every import of it contains."""
    return (path.parent.name if path.name == "__init__.py" else path.stem).encode()


def is_python_with(word: bytes, file: TreeFile | None, path: PurePosixPath) -> bool:
    """Whether a Python file exists and contains a word."""
    return path.suffix == ".py" and file is not None and word in file.content


def module_file(name: str, test: PurePosixPath, tree: Tree) -> PurePosixPath | None:
    """Return the path of a module, existing or not; None if it is not part of the workspace."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in _NOT_OURS:
        return None
    parts = PurePosixPath(*name.split("."))
    roots = (PurePosixPath(), test.parent, PurePosixPath("src"))
    for root in roots:
        for path in (root / parts.with_suffix(".py"), root / parts / "__init__.py"):
            if path in tree.files:
                return path
    return parts.with_suffix(".py")


def _resolved(test: PurePosixPath, written: str, tree: Tree) -> PurePosixPath:
    parts: list[str] = []
    for part in (test.parent / written).parts:
        if part == ".." and parts:
            parts.pop()
        elif part not in {"..", "."}:
            parts.append(part)
    path = PurePosixPath(*parts)
    if path.suffix or path in tree.files:
        return path
    for suffix in (".js", ".mjs", ".cjs", ".ts"):
        if path.with_suffix(suffix) in tree.files:
            return path.with_suffix(suffix)
    return path.with_suffix(".js")


def may_change(spec: RunSpec, protected: tuple[PurePosixPath, ...], pristine: Tree) -> MayChange:
    """Build the function that returns why a path may not be changed, or an empty text."""

    def reason(path: PurePosixPath) -> str:
        if path in protected or any(folder in protected for folder in path.parents):
            return f"`{path}` is a test or belongs to one: it is given, and stays as it is"
        if spec.allowed and not matches(path, spec.allowed):
            allowed = ", ".join(spec.allowed)
            return f"`{path}` is not among the files that may be changed: {allowed}"
        if why := pristine.why_withheld(path):
            return f"`{path}` stays as it is on the person's disk, unseen ({why}): write elsewhere"
        return ""

    return reason


def source_of(test_id: str, tree: Tree) -> str:
    """Return the function behind a pytest ID; empty if it cannot be found."""
    file, _, name = test_id.partition("[")[0].partition("::")
    text = tree.text(PurePosixPath(file))
    if text is None or not name:
        return ""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    wanted = name.rpartition("::")[2]
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == wanted:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return ""
