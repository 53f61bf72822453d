"""Rewrites the person's tests so that code which passes them honestly must fail.

The names stay, the expectations turn: an expected constant becomes another one, a claim its
opposite. Whatever makes such a test pass is not the code being right. Tests are also written anew
without a change of meaning, so that nobody can tell the two by their looks.
"""

import ast
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from assay.agent.verify.python_reading import parse_module
from assay.contracts.workspace import Tree, TreeFile

_OPPOSITES: Final = {
    "assertEqual": "assertNotEqual",
    "assertTrue": "assertFalse",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIsInstance": "assertNotIsInstance",
    "assertAlmostEqual": "assertNotAlmostEqual",
    "assertRegex": "assertNotRegex",
    "assertGreater": "assertLessEqual",
    "assertLess": "assertGreaterEqual",
}
_OPPOSITE: Final = {**_OPPOSITES, **{new: old for old, new in _OPPOSITES.items()}}
_EQUALITIES: Final = frozenset(
    {
        "assertEqual",
        "assertAlmostEqual",
        "assertListEqual",
        "assertTupleEqual",
        "assertDictEqual",
        "assertSetEqual",
        "assertSequenceEqual",
        "assertMultiLineEqual",
        "assertCountEqual",
    }
)
_RAISING: Final = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
# What hardly any program raises, so that waiting for it fails.
_RARE: Final = ("BufferError", "StopAsyncIteration", "FloatingPointError")
_WRITTEN: Final = (
    ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.operator,
    ast.unaryop, ast.expr_context, ast.JoinedStr,
)  # fmt: skip
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenTests:
    """Test files in two versions that look alike."""

    same: Mapping[PurePosixPath, TreeFile]
    """They mean what they meant."""
    turned: Mapping[PurePosixPath, TreeFile]
    """None of them can be passed honestly."""
    constants: frozenset[str]
    """Numbers of the assertions in which an expected constant was replaced."""


@dataclass(slots=True)
class _Turner:
    """Walks through one file; `turn` says whether meanings change."""

    beacon: str
    turn: bool
    first: int
    seed: int
    constants: set[str] = field(default_factory=set[str])
    number: int = 0
    scope: _FUNCTION | None = None
    """The function that is being rewritten."""

    def rewrite(self, module: ast.Module) -> int:
        """Rewrite the file in place; returns the number after the last one used."""
        self.number = self.first
        for node in ast.walk(module):
            if isinstance(node, _FUNCTION):
                self.scope = node
                only_raising = not any(_is_assertion(inner) for inner in ast.walk(node))
                self._rewrite_body(node, only_raising=only_raising)
        return self.number

    def _rewrite_body(self, node: ast.AST, *, only_raising: bool) -> None:
        for name in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(node, name, [])
            new = [
                line for old in block for line in self._rewritten(old, only_raising=only_raising)
            ]
            if block:
                setattr(node, name, new)
        for case in getattr(node, "cases", ()):
            self._rewrite_body(case, only_raising=only_raising)

    def _rewritten(self, node: ast.stmt, *, only_raising: bool) -> list[ast.stmt]:
        # Functions and classes within are walked to on their own.
        if isinstance(node, (*_FUNCTION.__args__, ast.ClassDef)):
            return [node]
        if _is_assertion(node):
            # Its number stands before it, so that reaching it is told even if it fails.
            return [self._tell(), *self._turned(node)]
        if _expects_raise(node):
            return [self._tell(), self._other_exception(node)] if only_raising else [node]
        # What fails where a test catches it is the test's own business.
        if not (isinstance(node, ast.Try | ast.TryStar) and node.handlers):
            self._rewrite_body(node, only_raising=only_raising)
        return [node]

    def _tell(self) -> ast.stmt:
        self.number += 1
        call = ast.Call(
            func=ast.Name(id=self.beacon, ctx=ast.Load()),
            args=[ast.Constant(value=str(self.number))],
            keywords=[],
        )
        return ast.Expr(value=call)

    def _turned(self, node: ast.stmt) -> list[ast.stmt]:
        if not self.turn:
            return [node]
        if isinstance(node, ast.Assert):
            if not self._change_expected(node.test):
                node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
            return [node]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._turned_call(node, node.value)
        return [node]

    def _turned_call(self, node: ast.Expr, call: ast.Call) -> list[ast.stmt]:
        name = _called(call)
        if (name in _EQUALITIES or name not in _OPPOSITE) and len(call.args) > 1:
            # The other side is the one that the code under test gave.
            side = _expected_side(call.args[0], call.args[1])
            if side is not None and self._change_constant(call.args[side]):
                return [node]
            if name == "assertEqual":
                call.args[1] = _unlike(call.args[1])
                return [node]
        if name in _OPPOSITE and isinstance(call.func, ast.Attribute):
            call.func.attr = _OPPOSITE[name]
            return [node]
        return [_turned_around(node)]

    def _change_expected(self, test: ast.expr) -> bool:
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return False
        if not isinstance(test.ops[0], ast.Eq):
            return False
        sides = [test.left, test.comparators[0]]
        side = _expected_side(sides[0], sides[1])
        if side is not None and self._change_constant(sides[side]):
            return True
        if any(self._change_origin(side) for side in reversed(sides)):
            return True
        at = 0 if _has_call(sides[1]) and not _has_call(sides[0]) else 1
        sides[at] = _unlike(sides[at])
        test.left, test.comparators = sides[0], [sides[1]]
        return True

    def _change_origin(self, side: ast.expr) -> bool:
        """Change the constants that a name stands for, if it is there for this alone."""
        if self.scope is None or not isinstance(side, ast.Name):
            return False
        origins = _origins(self.scope, side.id)
        # Every one of them, since each may be a test of its own.
        return bool(origins) and False not in [self._change_constant(origin) for origin in origins]

    def _change_constant(self, node: ast.expr) -> bool:
        for inner in _values(node):
            value = inner.value
            pick = random.Random(f"{self.seed} {self.number}")  # noqa: S311 - to repeat, not to hide
            match value:
                case bool():
                    inner.value = not value
                case int() | float():
                    inner.value = value * 2 + pick.randrange(11, 99)
                case str():
                    inner.value = value + pick.choice("qxz") + str(pick.randrange(11, 99))
                case bytes():
                    inner.value = value + b"%d" % pick.randrange(11, 99)
                case _:
                    continue
            self.constants.add(str(self.number))
            return True
        return False

    def _other_exception(self, node: ast.stmt) -> ast.stmt:
        if not self.turn:
            return node
        for call in ast.walk(node):
            if _is_raising_call(call) and isinstance(call, ast.Call) and call.args:
                rare = _RARE[self.number % len(_RARE)]
                call.args[0] = ast.Name(id=rare, ctx=ast.Load())
        return node


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    name = _called(node.value)
    if name in _RAISING or name.startswith(("assertRaises", "assertWarns", "assertLogs")):
        return False
    return name.startswith("assert_") or (name.startswith("assert") and name[6:7].isupper())


def _is_raising_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node) in _RAISING


def _expects_raise(node: ast.stmt) -> bool:
    match node:
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return any(_is_raising_call(item.context_expr) for item in items)
        case ast.Expr(value=value):
            return _is_raising_call(value)
        case _:
            return False


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Call | ast.Await) for inner in ast.walk(node))


def _expected_side(left: ast.expr, right: ast.expr) -> int | None:
    """Which of two values is written down in the test."""
    return next((at for at, side in ((1, right), (0, left)) if _is_written_down(side)), None)


def _is_written_down(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and _called(node) == "approx":
        return True
    return all(isinstance(inner, _WRITTEN) for inner in ast.walk(node))


def _origins(function: _FUNCTION, name: str) -> list[ast.expr]:
    """Where the value of a name is written down: an assignment, or parameters of the test.

    A name that is used twice may be what the code is given as well; changing it proves nothing.
    """
    uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name]
    if sum(isinstance(use.ctx, ast.Load) for use in uses) != 1:
        return []
    stored = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
    ]
    if len(uses) == 1:
        stored = [value for call in function.decorator_list for value in _parameters(call, name)]
    elif len(uses) > len(stored) + 1:
        return []
    return stored if all(_is_written_down(value) for value in stored) else []


def _parameters(decorator: ast.expr, name: str) -> list[ast.expr]:
    """The values that `pytest.mark.parametrize` gives to a name, if they can be read."""
    match decorator:
        case ast.Call(
            args=[names, ast.List(elts=rows) | ast.Tuple(elts=rows), *_], keywords=keywords
        ) if _called(decorator) == "parametrize" and not keywords:
            wanted = _argument_names(names)
        case _:
            return []
    if name not in wanted:
        return []
    if len(wanted) == 1:
        return rows
    at = wanted.index(name)
    full = [row for row in rows if isinstance(row, ast.Tuple | ast.List)]
    if len(full) != len(rows) or any(len(row.elts) <= at for row in full):
        return []
    return [row.elts[at] for row in full]


def _argument_names(node: ast.expr) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [word.strip() for word in text.split(",")]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [str(part.value) for part in parts if isinstance(part, ast.Constant)]
        case _:
            return []


def _values(node: ast.expr) -> list[ast.Constant]:
    """The constants that a value is made of, without those that only say how to compare."""
    if isinstance(node, ast.Call):
        return [value for argument in node.args[:1] for value in _values(argument)]
    if any(isinstance(inner, ast.BinOp | ast.JoinedStr) for inner in ast.walk(node)):
        # A change in one place need not change what is computed.
        return []
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Constant)]


def _unlike(node: ast.expr) -> ast.expr:
    """Nothing a program gives back is equal to this, unless it says so of everything."""
    return ast.Tuple(elts=[node, ast.Constant(value=...)], ctx=ast.Load())


def _turned_around(node: ast.stmt) -> ast.stmt:
    """An assertion without an opposite: it has to fail now."""
    failure = ast.Raise(exc=ast.Name(id="AssertionError", ctx=ast.Load()))
    caught = ast.ExceptHandler(
        type=ast.Name(id="AssertionError", ctx=ast.Load()), body=[ast.Pass()]
    )
    return ast.Try(body=[node], handlers=[caught], orelse=[failure], finalbody=[])


def rewrite_tests(
    tree: Tree, protected: tuple[PurePosixPath, ...], *, beacon: str, seed: int
) -> RewrittenTests:
    """Rewrite every protected Python file; what cannot be read is left as it is."""
    same: dict[PurePosixPath, TreeFile] = {}
    turned: dict[PurePosixPath, TreeFile] = {}
    constants: set[str] = set()
    first = 0
    for path in sorted(tree.files):
        if not any(path == root or root in path.parents for root in protected):
            continue
        if path.name == "conftest.py":
            continue
        last = first
        for versions, turn in ((same, False), (turned, True)):
            module = parse_module(tree, path)
            if module is None:
                break
            turner = _Turner(beacon=beacon, turn=turn, first=first, seed=seed)
            last = turner.rewrite(module)
            constants |= turner.constants
            source = ast.unparse(ast.fix_missing_locations(module)).encode()
            versions[path] = TreeFile(source + b"\n", tree.files[path].executable)
        first = last
    return RewrittenTests(same=same, turned=turned, constants=frozenset(constants))
