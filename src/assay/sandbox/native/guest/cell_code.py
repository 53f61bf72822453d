"""Runs the source of one cell: compiles it, shows its last value, reports its exception."""

import __future__

import builtins
import linecache
import sys
import tokenize
import types
from collections.abc import Coroutine
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from assay.sandbox.native.guest import tracebacks
from assay.sandbox.native.guest.display import Display

if TYPE_CHECKING:
    import ast

_IS_COROUTINE: Final = 0x80
_LAST_VALUE: Final = "__assay_last_value__"
_SKIPPED: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENDMARKER}
)
_FUTURES: Final = sum(
    {getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}
)


class CellCode:
    """The `__main__` module that all cells of an interpreter share."""

    def __init__(self, shower: Display) -> None:
        self._shower = shower
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        self._futures = 0
        """The `__future__` flags that earlier cells have set."""
        sys.modules["__main__"] = self._main
        sys.argv = [""]
        sys.displayhook = self._show_value
        builtins.__dict__["display"] = shower.display

    def run(self, number: int, source: str) -> int:
        """Run one cell and return the exit code that a program would have."""
        name = f"<cell {number}>"
        try:
            self._execute(name, source)
        except SystemExit as leaving:
            code = _exit_code(leaving.code)
        except BaseException as error:  # noqa: BLE001 - an exception of a cell is shown, and the state is kept
            self._shower.error(tracebacks.describe(error))
            code = 1
        else:
            code = 0
        self._shower.figures()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001, S112 - a stream that the cell created
                continue
        return code

    def _execute(self, name: str, source: str) -> None:
        # Without a line end, a traceback would mark the wrong position in the last line.
        lines = f"{source}\n".splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)
        # Imported late: a smaller zygote forks faster.
        from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST

        flags = PyCF_ALLOW_TOP_LEVEL_AWAIT | self._futures
        tree = compile(source, name, "exec", flags | PyCF_ONLY_AST, dont_inherit=True)
        shown = _mark_last_value(tree, source)
        code = compile(tree, name, "exec", flags, dont_inherit=True)
        self._futures |= code.co_flags & _FUTURES
        space = self._main.__dict__
        if code.co_flags & _IS_COROUTINE:
            import asyncio

            # A new event loop for each cell: one that has run cannot be used after a fork.
            coroutine: Coroutine[Any, Any, Any] = eval(code, space)  # noqa: S307 - runs the cell
            asyncio.run(coroutine)
        else:
            exec(code, space)  # noqa: S102 - runs the cell
        if shown and _LAST_VALUE in space:
            sys.displayhook(space.pop(_LAST_VALUE))

    def _show_value(self, value: object) -> None:
        if value is not None:
            builtins.__dict__["_"] = value
            self._shower.value(value)


def _mark_last_value(tree: "ast.Module", source: str) -> bool:
    """Store the value of a last expression under a name, unless a semicolon follows it."""
    import ast

    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        return False
    if _ends_with_semicolon(source):
        return False
    target = ast.Name(_LAST_VALUE, ast.Store())
    kept = ast.Assign(targets=[target], value=last.value)
    ast.copy_location(target, last)
    tree.body[-1] = ast.copy_location(kept, last)
    return True


def _ends_with_semicolon(source: str) -> bool:
    if ";" not in source:
        return False
    last = ""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type not in _SKIPPED:
            last = token.string
    return last == ";"


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201 - what the interpreter does
    return 1
