"""Excerpts of files for the first message: failing tests with what they use, and traceback frames.

Large and generated files are never shown in full unless the goal names them.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from assay.agent.definitions import Function, find_definitions
from assay.contracts.verdict import TestResult
from assay.contracts.workspace import Tree

LARGE_BYTES: Final = 20_000
"""Larger files are not shown in full unless the goal names them."""
_GENERATED_NAMES: Final = re.compile(
    r".*\.lock|package-lock\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|go\.sum|.*\.min\.(?:js|css)"
    r"|.*\.map|.*\.snap|.*_pb2(?:_grpc)?\.pyi?|.*\.pb\.(?:go|h|cc)|.*\.svg"
)
_GENERATED_MARK: Final = re.compile(
    rb"@generated|DO NOT EDIT|Do not edit|[Gg]enerated (?:by|from|on)|Generated:"
)
_VENDORED: Final = frozenset({"vendor", "vendored", "_vendor", "third_party", "node_modules"})
_HEAD_BYTES: Final = 1_000
_SMALL_BYTES: Final = 8_000
"""Smaller files are not searched for signs that they are generated: they cost little."""
_LONG_LINE: Final = 1_000
_ALMOST_ALL: Final = 0.75
_WHOLE_CHARS: Final = 2_000
"""Files up to this length are shown in full: an excerpt saves nothing."""
_LINES_OF_A_BLOCK: Final = 60
_LINES_AROUND: Final = 12
_MOST_TESTS: Final = 20
_MOST_FRAMES: Final = 5
_SET_UP: Final = frozenset(
    {"setUp", "tearDown", "setUpClass", "setup_method", "setup_class", "__init__"}
)

_IMPORT: Final = re.compile(
    r"^[ \t]*from[ \t]+[\w.]+[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n(]+))"
    r"|^import[ \t]+\{([^}]*)\}",
    re.MULTILINE,
)

Lines = tuple[int, int]
"""The first and last line of a part of a file, counted from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Parts of a file, or all of it."""

    path: PurePosixPath
    lines: tuple[Lines, ...]
    """In order; empty for the whole file."""

    def text(self, tree: Tree) -> str:
        """Return the parts, with a mark for each gap."""
        source = tree.text(self.path) or ""
        if not self.lines:
            return source
        rows = source.splitlines()
        shown: list[str] = []
        after = 1
        for first, last in self.lines:
            if first > after:
                shown.append("[...]")
            shown.extend(rows[first - 1 : last])
            after = last + 1
        return "\n".join([*shown, *(["[...]"] if after <= len(rows) else [])])

    def place(self) -> str:
        """Return the line numbers for a title; empty for the whole file."""
        spans = ", ".join(f"{first}-{last}" for first, last in self.lines)
        return f", lines {spans}" if spans else ""


def is_bulky(path: PurePosixPath, tree: Tree) -> bool:
    """Whether a file is too large, generated, vendored or no text: never shown unasked."""
    file = tree.files.get(path)
    if file is None or len(file.content) > LARGE_BYTES or tree.text(path) is None:
        return True
    return is_generated(path, tree)


def is_generated(path: PurePosixPath, tree: Tree) -> bool:
    """Whether a program wrote a file, or it is a copy of another project's file."""
    if _GENERATED_NAMES.fullmatch(path.name) or not _VENDORED.isdisjoint(path.parts):
        return True
    file = tree.files.get(path)
    if file is None:
        return False
    if len(file.content) <= _SMALL_BYTES:
        return False
    if any(len(line) > _LONG_LINE for line in file.content.splitlines()):
        return True
    return bool(_GENERATED_MARK.search(file.content[:_HEAD_BYTES]))


def is_dump(path: PurePosixPath, tree: Tree) -> bool:
    """Whether a file is generated and large, such as a bundled library."""
    file = tree.files.get(path)
    return file is not None and len(file.content) > LARGE_BYTES and is_generated(path, tree)


def find_failing_sources(
    tests: Iterable[TestResult], tree: Tree, *, files: tuple[PurePosixPath, ...], max_chars: int
) -> tuple[Excerpt, ...]:
    """Return the source of tests with the code of their files that they use.

    `files` are the test files of the workspace: the IDs of many runners name no file. Tests for
    which there is no room are left out.
    """
    wanted: dict[PurePosixPath, list[Lines]] = {}
    for test in islice(tests, _MOST_TESTS):
        path, lines = _locate(test.id, tree, files)
        if path is None or not lines:
            continue
        more = _merged([*wanted.get(path, []), *lines])
        sizes = {**wanted, path: more}
        if sum(_chars(each, spans, tree) for each, spans in sizes.items()) > max_chars:
            continue
        wanted[path] = more
    return tuple(_excerpt(path, lines, tree) for path, lines in wanted.items())


def _excerpt(path: PurePosixPath, lines: list[Lines], tree: Tree) -> Excerpt:
    whole = len(tree.text(path) or "")
    shown = _chars(path, lines, tree)
    if not is_bulky(path, tree) and (whole <= _WHOLE_CHARS or shown >= whole * _ALMOST_ALL):
        return Excerpt(path=path, lines=())
    return Excerpt(path=path, lines=tuple(lines))


def _chars(path: PurePosixPath, lines: list[Lines], tree: Tree) -> int:
    rows = (tree.text(path) or "").splitlines()
    return sum(len(row) + 1 for first, last in lines for row in rows[first - 1 : last])


def _merged(lines: list[Lines]) -> list[Lines]:
    """Return these parts in order, joined where only a few lines are between them."""
    joined: list[Lines] = []
    for first, last in sorted(lines):
        if joined and first <= joined[-1][1] + 3:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def _locate(
    test_id: str, tree: Tree, files: tuple[PurePosixPath, ...]
) -> tuple[PurePosixPath | None, list[Lines]]:
    """Return the file of a test, and its lines; none if it cannot be found."""
    file, _, name = test_id.partition("::")
    path = PurePosixPath(file)
    if path.suffix == ".py" and path in tree.files:
        return path, _python_lines(tree.text(path) or "", name.partition("[")[0].split("::"))
    names = [part for part in re.split(r"::|/| > |\.(?=\w)|#", test_id) if part.strip()]
    for wanted in reversed(names[-2:]):
        named = wanted.strip().encode("utf-8", "replace")
        for candidate in files:
            file = tree.files.get(candidate)
            if file is None or named not in file.content or is_bulky(candidate, tree):
                continue
            lines = _block_named(wanted.strip(), tree.text(candidate) or "")
            if lines is not None:
                return candidate, [lines]
    return None, []


def _block_named(name: str, text: str) -> Lines | None:
    """Return the block that declares a test of this name or with this title."""
    quoted = re.escape(name)
    pattern = re.compile(
        rf"""^.*(?:["'`]{quoted}["'`]|\b(?:fn|func|fun|def|void|function)\b[^\n(]*\b{quoted}\b)""",
        re.MULTILINE,
    )
    found = pattern.search(text)
    if found is None:
        return None
    first = text.count("\n", 0, found.start()) + 1
    depth, opened = 0, False
    rows = text.splitlines()[first - 1 : first - 1 + _LINES_OF_A_BLOCK]
    for number, row in enumerate(rows):
        depth += row.count("{") - row.count("}")
        opened = opened or "{" in row
        if opened and depth <= 0:
            return first, first + number
    return first, first + len(rows) - 1


def _python_lines(text: str, names: list[str]) -> list[Lines]:
    """Return the lines of a test and of everything in its module that it uses."""
    top = _top_level(text)
    node = top.get(names[0])
    if node is None:
        return []
    chosen: list[ast.stmt] = []
    lines: list[Lines] = []
    if isinstance(node, ast.ClassDef):
        parts = _used_in_class(node, names[-1])
        if not parts:
            return []
        lines.append((_first_line(node), max(node.lineno, node.body[0].lineno - 1)))
        chosen.extend(parts)
        todo = [*parts, *(ast.Expr(value=base) for base in node.bases)]
    else:
        chosen.append(node)
        todo = [node]
    seen = {names[0]}
    while todo:
        for name in _names_in(todo.pop()):
            used = top.get(name)
            if used is not None and name not in seen:
                seen.add(name)
                chosen.append(used)
                todo.append(used)
    lines.extend((_first_line(part), part.end_lineno or part.lineno) for part in chosen)
    return _merged(lines)


@lru_cache(maxsize=16)
def _top_level(text: str) -> Mapping[str, ast.stmt]:
    """Return the statements of a module by the names that they define."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {name: node for node in module.body for name in _bound_by(node)}


def _used_in_class(node: ast.ClassDef, name: str) -> list[ast.stmt]:
    """Return a test method, the methods that prepare it and those that it calls."""
    own = {bound: part for part in node.body for bound in _bound_by(part)}
    if name not in own:
        return []
    wanted = [name, *(each for each in own if each in _SET_UP)]
    found: dict[str, ast.stmt] = {}
    while wanted:
        each = wanted.pop()
        if each in own and each not in found:
            found[each] = own[each]
            wanted.extend(_names_in(own[each]))
    return list(found.values())


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((each.asname or each.name).partition(".")[0] for each in names)
        case ast.Assign() | ast.AnnAssign() | ast.If() | ast.Try():
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id
                elif isinstance(part, ast.Import | ast.ImportFrom | Function):
                    yield from _bound_by(part)
        case _:
            pass


def _names_in(node: ast.AST) -> set[str]:
    """Return the names that code uses, with the parameters, which may be fixtures."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.arg):
            found.add(part.arg)
        elif isinstance(part, ast.Attribute) and ast.unparse(part.value) in {"self", "cls"}:
            found.add(part.attr)
    return found


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def names_imported(source: str) -> tuple[str, ...]:
    """Return the names that the imports of a Python or JavaScript excerpt bring in."""
    found = (group for match in _IMPORT.findall(source) for group in match)
    return tuple(
        dict.fromkeys(name for group in found for name in re.findall(r"\w+", group) if name != "as")
    )


_FRAMES: Final = (
    re.compile(r"^[ \t]*File \"(?P<file>[^\"\n]+)\", line (?P<line>\d+)", re.MULTILINE),
    re.compile(r"^(?P<file>[^\s:\"'()]+\.py):(?P<line>\d+): ", re.MULTILINE),
    re.compile(
        r"^[ \t]+at [^\n]*?\(?(?:file://)?(?P<file>/[^\n():]+):(?P<line>\d+):\d+\)?$", re.MULTILINE
    ),
    re.compile(
        r"(?P<file>[\w./+-]{1,200}\.(?:go|cpp|cc|cxx|c|h|hpp|rs|js|mjs|ts|java|kt)):(?P<line>\d+)"
    ),
)
_PYTHON_FRAMES: Final = 2
"""How many of the patterns belong to Python, which prints the innermost frame last."""
_NOT_OF_THE_PROJECT: Final = re.compile(
    r"site-packages|node_modules|node:internal|<frozen|/lib/python3|/opt/assay|/rustc/|^/usr/"
)


def find_frames(texts: Iterable[str], tree: Tree) -> tuple[tuple[PurePosixPath, int], ...]:
    """Return the files and lines of the workspace in failure reports, the innermost first."""
    found: dict[tuple[PurePosixPath, int], None] = {}
    for text in texts:
        for number, pattern in enumerate(_FRAMES):
            frames = [
                (path, int(match["line"]))
                for match in pattern.finditer(text)
                if not _NOT_OF_THE_PROJECT.search(match["file"])
                and (path := _resolve(match["file"], tree)) is not None
            ]
            found.update(dict.fromkeys(reversed(frames) if number < _PYTHON_FRAMES else frames))
    return tuple(found)


def _resolve(written: str, tree: Tree) -> PurePosixPath | None:
    """Return the file of the workspace that a program calls so, from any folder."""
    parts = [part for part in PurePosixPath(written).parts if part not in {"/", ".", ".."}]
    for start in range(len(parts)):
        path = PurePosixPath(*parts[start:])
        if path in tree.files:
            return path
    return None


def find_frame_sources(
    frames: Iterable[tuple[PurePosixPath, int]],
    tree: Tree,
    *,
    without: frozenset[PurePosixPath],
    max_chars: int,
) -> tuple[Excerpt, ...]:
    """Return the functions to which frames lead, except those in the files in `without`."""
    wanted: dict[PurePosixPath, list[Lines]] = {}
    taken = 0
    left = max_chars
    for path, line in frames:
        if path in without or taken >= _MOST_FRAMES:
            continue
        lines = _around(path, line, tree)
        size = _chars(path, [lines], tree)
        if lines in wanted.get(path, []) or size > left:
            continue
        wanted[path] = [*wanted.get(path, []), lines]
        taken, left = taken + 1, left - size
    return tuple(_excerpt(path, _merged(lines), tree) for path, lines in wanted.items())


def _around(path: PurePosixPath, line: int, tree: Tree) -> Lines:
    """Return the innermost function at this line, or the lines around it."""
    content = tree.files[path].content
    inside = [
        found
        for found in find_definitions(path.suffix, content)
        if found.first <= line <= found.last and found.kind == "def"
    ]
    if inside:
        found = min(inside, key=lambda each: each.last - each.first)
        if found.last - found.first < _LINES_OF_A_BLOCK * 2:
            return found.first, found.last
    total = content.count(b"\n") + 1
    return max(1, line - _LINES_AROUND), min(total, line + _LINES_AROUND)
