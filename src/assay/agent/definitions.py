"""Definitions in source files: functions, classes and their methods, with their lines.

Python is parsed. Other languages are searched for lines that declare something. The results are
cached by file content.
"""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_BYTES: Final = 200_000
"""Larger files are not read: they are data, or generated."""
_MOST: Final = 400
"""Definitions per file."""
_CACHED_FILES: Final = 256

# Every repetition is limited or can match in one way only: the files are not trusted, and a search
# must not take longer than in proportion to their size.
_MODIFIERS: Final = (
    r"^[ \t]{0,80}(?:(?:export|default|public|private|protected|internal|static|final|abstract"
    r"|async|inline|constexpr|virtual|pub(?:\([^)\n]{0,40}\))?|unsafe|const)[ \t]+)*"
)
_DECLARATIONS: Final = (
    re.compile(
        _MODIFIERS + r"(?P<kind>class|struct|enum|interface|trait|impl|namespace|module|object|type"
        r"|record|function\*?|fn|func|def|fun|sub)[ \t]+(?:\([^)\n]{0,200}\)[ \t]*)?"
        r"(?P<name>[A-Za-z_$][\w$:]{0,200})",
        re.MULTILINE,
    ),
    re.compile(
        r"^(?:export[ \t]+)?(?:const|let|var)[ \t]+(?P<name>[A-Za-z_$][\w$]{0,200})[ \t]*=[ \t]*"
        r"(?:async[ \t]*)?(?:function\b|\([^)\n]{0,300}\)[ \t]*=>|[\w$]{1,200}[ \t]*=>)",
        re.MULTILINE,
    ),
    # C, C++ and Java: a type, a name and parameters on the line that opens the body.
    re.compile(
        r"^[ \t]{0,80}(?!return\b|else\b|new\b|throw\b|if\b|for\b|while\b|switch\b)"
        r"[A-Za-z_][^;{}()=\n]{0,200}?[ \t*&](?P<name>~?[A-Za-z_][\w:]{0,200})\([^;{}\n]{0,300}\{",
        re.MULTILINE,
    ),
)
_TYPED: Final = frozenset({".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".java", ".cs"})
SOURCE_SUFFIXES: Final = _TYPED | {
    *(".py", ".pyi", ".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".tsx", ".rs", ".go"),
    *(".rb", ".kt", ".scala", ".swift", ".php", ".lua", ".sh"),
}
"""Endings of files in which definitions are searched for."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A function or class, and the lines that it takes."""

    name: str
    """Of a method: with the name of its class, as `Class.method`."""
    kind: str
    """The keyword that declares it; empty if there is none."""
    first: int
    """The first line, counted from 1, with decorators."""
    last: int
    """The last line; the same as the first if it is not known."""

    @property
    def is_member(self) -> bool:
        return "." in self.name


@lru_cache(maxsize=_CACHED_FILES)
def find_definitions(suffix: str, content: bytes) -> tuple[Definition, ...]:
    """Return the definitions of a file in their order; empty if it cannot be read."""
    if suffix not in SOURCE_SUFFIXES or len(content) > MAX_BYTES:
        return ()
    text = content.decode("utf-8", errors="replace")
    if suffix in {".py", ".pyi"}:
        try:
            return tuple(_of_python(ast.parse(content)))[:_MOST]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    found: dict[int, Definition] = {}
    for pattern in _DECLARATIONS if suffix in _TYPED else _DECLARATIONS[:2]:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start("name")) + 1
            kind = match.groupdict().get("kind") or ""
            name = match["name"]
            found.setdefault(line, Definition(name=name, kind=kind, first=line, last=line))
            if len(found) >= _MOST:
                break
    return tuple(found[line] for line in sorted(found))


def _of_python(module: ast.Module) -> list[Definition]:
    found: list[Definition] = []
    for node in _statements(module.body):
        if isinstance(node, Function):
            found.append(_definition(node, node.name, "def"))
        elif isinstance(node, ast.ClassDef):
            found.append(_definition(node, node.name, "class"))
            found.extend(
                _definition(inner, f"{node.name}.{inner.name}", "def")
                for inner in _statements(node.body)
                if isinstance(inner, Function)
            )
    return found


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return these statements, with those inside `if` and `try`."""
    found: list[ast.stmt] = []
    for node in body:
        found.append(node)
        if isinstance(node, ast.If):
            found.extend(_statements([*node.body, *node.orelse]))
        elif isinstance(node, ast.Try):
            handled = [part for handler in node.handlers for part in handler.body]
            found.extend(_statements([*node.body, *handled, *node.orelse]))
    return found


def _definition(node: Function | ast.ClassDef, name: str, kind: str) -> Definition:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return Definition(name=name, kind=kind, first=first, last=node.end_lineno or node.lineno)
