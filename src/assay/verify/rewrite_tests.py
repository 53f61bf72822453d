"""Rewrite the user's tests so that correct code must fail them.

Names stay and expectations are inverted: constants are replaced, conditions are negated. If such a
test passes, the code is not the cause. A second version keeps the meaning but looks alike, so that
code cannot tell the two apart.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.workspace import Tree, TreeFile
from assay.verify.invert_assertions import FUNCTION, Expectation, Words, called, is_written_down
from assay.verify.python_tests import parse_module

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
# Exceptions that programs hardly ever raise, so that a test that expects one fails.
_RARE: Final = ("BufferError", "StopAsyncIteration", "FloatingPointError")
# The position of the lesser operand.
_ORDERS: Final = {
    "assertLess": 0,
    "assertLessEqual": 0,
    "assertGreater": 1,
    "assertGreaterEqual": 1,
}
# Statements whose body may not be reached.
_BRANCHES: Final = (ast.If, ast.Try, ast.TryStar, ast.Match)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenTests:
    """The test files in two versions that look alike."""

    same: Mapping[PurePosixPath, TreeFile]
    """The files with their original meaning."""
    turned: Mapping[PurePosixPath, TreeFile]
    """The files with inverted tests."""
    constants: frozenset[str]
    """Numbers of the assertions with a replaced constant."""
    unsure: frozenset[str] = frozenset()
    """Numbers of the assertions that correct code might pass in both versions, in rare cases."""
    within: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By test name: the numbers of the assertions of which it has to reach one."""


@dataclass(slots=True)
class _Turner:
    """Rewrite one file; `turn` says whether to invert its assertions."""

    words: Words
    turn: bool
    first: int
    seed: int
    constants: set[str] = field(default_factory=set[str])
    unsure: set[str] = field(default_factory=set[str])
    helpers: frozenset[str] = frozenset()
    """Assertion functions of the tests: inverted in their definition, not in their calls."""
    number: int = 0
    scope: FUNCTION | None = None
    """The function that is being rewritten."""

    def rewrite(self, module: ast.Module) -> int:
        """Rewrite the file in place; returns the last number used."""
        self.number = self.first
        for node in ast.walk(module):
            if isinstance(node, FUNCTION):
                self.scope = node
                only_raising = not any(
                    _is_assertion(inner, self.helpers) for inner in ast.walk(node)
                )
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
        # Nested functions and classes are visited separately.
        if isinstance(node, (*FUNCTION.__args__, ast.ClassDef)):
            return [node]
        if _is_assertion(node, self.helpers):
            # The number comes first, so that a failing assertion is reported as reached too.
            return [self._tell(), *self._turned(node)]
        if _expects_raise(node):
            return [self._tell(), self._other_exception(node)] if only_raising else [node]
        # The test catches failures in a `try` body itself, so these are not inverted.
        if not (isinstance(node, ast.Try | ast.TryStar) and node.handlers):
            self._rewrite_body(node, only_raising=only_raising)
        return [node]

    def _tell(self) -> ast.stmt:
        self.number += 1
        call = ast.Call(
            func=ast.Name(id=self.words.tell, ctx=ast.Load()),
            args=[ast.Constant(value=str(self.number))],
            keywords=[],
        )
        return ast.Expr(value=call)

    def _turned(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Assert):
            if not self._expectation().change(node.test) and self.turn:
                node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
            return [node]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._turned_call(node, node.value)
        return [node]

    def _expectation(self) -> Expectation:
        return Expectation(
            words=self.words,
            turn=self.turn,
            seed=self.seed,
            number=self.number,
            scope=self.scope,
            constants=self.constants,
            unsure=self.unsure,
        )

    def _turned_call(self, node: ast.Expr, call: ast.Call) -> list[ast.stmt]:
        name = called(call)
        if self._change_call(name, call.args) or not self.turn:
            return [node]
        if name in _OPPOSITE and isinstance(call.func, ast.Attribute):
            call.func.attr = _OPPOSITE[name]
            return [node]
        return [_turned_around(node)]

    def _change_call(self, name: str, arguments: list[ast.expr]) -> bool:
        expected = self._expectation()
        match arguments:
            case [test, *_] if name == "assertTrue":
                return expected.change(test)
            case [first, second, *rest] if name in _EQUALITIES:
                sides = [first, second]
                changed = expected.change_equal(sides)
                arguments[:] = [*sides, *rest]
                return changed
            case [first, second, *_] if name == "assertIn":
                return expected.change_member(first, second)
            case [first, second, *_] if name in _ORDERS:
                less, more = (second, first) if _ORDERS[name] else (first, second)
                return expected.change_order(less, more)
            case [first, second, *_] if name not in _OPPOSITE:
                # The other operand comes from the code under test.
                return any(
                    expected.change_constant(side)
                    for side in (second, first)
                    if is_written_down(side)
                )
            case _:
                return False

    def _other_exception(self, node: ast.stmt) -> ast.stmt:
        if not self.turn:
            return node
        for call in ast.walk(node):
            if _is_raising_call(call) and isinstance(call, ast.Call) and call.args:
                rare = _RARE[self.number % len(_RARE)]
                call.args[0] = ast.Name(id=rare, ctx=ast.Load())
        return node


def _is_assertion(node: ast.AST, helpers: frozenset[str] = frozenset()) -> bool:
    if isinstance(node, ast.Assert):
        # `assert False` marks code that must not be reached.
        return not isinstance(node.test, ast.Constant) or bool(node.test.value)
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    name = called(node.value)
    if name in _RAISING or name.startswith(("assertRaises", "assertWarns", "assertLogs")):
        return False
    if name in helpers:
        return False
    return name.startswith("assert_") or (name.startswith("assert") and name[6:7].isupper())


def _own_helpers(modules: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of functions that are named as assertions and contain some."""
    return frozenset(
        node.name
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, FUNCTION)
        and node.name.startswith("assert")
        and any(_is_assertion(inner) for inner in ast.walk(node))
    )


def _is_raising_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) in _RAISING


def _expects_raise(node: ast.stmt) -> bool:
    match node:
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return any(_is_raising_call(item.context_expr) for item in items)
        case ast.Expr(value=value):
            return _is_raising_call(value)
        case _:
            return False


def _turned_around(node: ast.stmt) -> ast.stmt:
    """Return an assertion without an opposite, wrapped so that it has to fail."""
    failure = ast.Raise(exc=ast.Name(id="AssertionError", ctx=ast.Load()))
    caught = ast.ExceptHandler(
        type=ast.Name(id="AssertionError", ctx=ast.Load()), body=[ast.Pass()]
    )
    return ast.Try(body=[node], handlers=[caught], orelse=[failure], finalbody=[])


def _certain_numbers(node: ast.AST, words: Words) -> Iterator[str]:
    """Yield the numbers of assertions outside of branches."""
    for inner in ast.iter_child_nodes(node):
        match inner:
            case ast.Expr(
                value=ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(n))])
            ):
                if name == words.tell:
                    yield n
            case _ if not isinstance(inner, _BRANCHES):
                yield from _certain_numbers(inner, words)
            case _:
                pass


def _is_rewritten(path: PurePosixPath, protected: tuple[PurePosixPath, ...]) -> bool:
    below = any(path == root or root in path.parents for root in protected)
    return below and path.suffix == ".py" and path.name != "conftest.py"


def rewrite_tests(
    tree: Tree, protected: tuple[PurePosixPath, ...], *, words: Words, seed: int
) -> RewrittenTests:
    """Rewrite every protected Python file; files that cannot be parsed stay unchanged."""
    same: dict[PurePosixPath, TreeFile] = {}
    turned: dict[PurePosixPath, TreeFile] = {}
    constants: set[str] = set()
    unsure: set[str] = set()
    within: dict[str, frozenset[str]] = {}
    first = 0
    paths = [path for path in sorted(tree.files) if _is_rewritten(path, protected)]
    helpers = _own_helpers(module for path in paths if (module := parse_module(tree, path)))
    for path in paths:
        last = first
        for versions, turn in ((same, False), (turned, True)):
            module = parse_module(tree, path)
            if module is None:
                break
            turner = _Turner(words=words, turn=turn, first=first, seed=seed, helpers=helpers)
            last = turner.rewrite(module)
            constants |= turner.constants
            unsure |= turner.unsure
            source = ast.unparse(ast.fix_missing_locations(module)).encode()
            versions[path] = TreeFile(source + b"\n", tree.files[path].executable)
            for test in ast.walk(module):
                if isinstance(test, FUNCTION) and test.name.startswith("test"):
                    numbers = frozenset(_certain_numbers(test, words))
                    within[test.name] = within.get(test.name, frozenset()) | numbers
        first = last
    return RewrittenTests(
        same=same,
        turned=turned,
        constants=frozenset(constants - unsure),
        unsure=frozenset(unsure),
        within=within,
    )
