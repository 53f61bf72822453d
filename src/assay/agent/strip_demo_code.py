"""Remove demonstrations and tests that a small model adds to a module unasked.

Only files that the tests import are changed: code that runs on import is not useful there.
"""

import ast

_KEPT_AT_TOP = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
)


def tidy_module(source: str) -> str:
    """Return the source without top-level prints, asserts, demonstrations and test functions.

    Source that cannot be parsed, or would be empty afterwards, is returned unchanged.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return source
    lines = source.splitlines(keepends=True)
    kept = False
    for node in reversed(module.body):
        if not _is_demonstration(node):
            kept = kept or isinstance(node, _KEPT_AT_TOP)
            continue
        del lines[_first_line(node) - 1 : node.end_lineno]
    return "".join(lines) if kept else source


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_demonstration(node: ast.stmt) -> bool:
    match node:
        case ast.Assert():
            found = True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            found = name == "print" or name.startswith("test_")
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            found = name in {"unittest", "doctest"}
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), body=body):
            found = all(_is_demonstration(inner) for inner in body)
        case ast.FunctionDef(name=name):
            found = name.startswith("test_")
        case ast.ClassDef(bases=bases):
            found = any("TestCase" in ast.unparse(base) for base in bases)
        case _:
            found = False
    return found
