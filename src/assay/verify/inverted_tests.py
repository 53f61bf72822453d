"""Rewrite the user's tests so that correct code must fail them.

Names stay and expectations are inverted: constants are replaced, conditions are negated. If such
a test passes, the code is not the cause. A second version keeps the meaning but looks alike, so
that code cannot tell the two apart. A negation alone is not enough: code that is equal to
everything would fail its opposite too. So the expected value is replaced by another of its type,
if possible.
"""

import ast
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, TypeGuard

from assay.contracts.workspace import Tree, TreeFile
from assay.verify.discovery import parse_module

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_WRITTEN: Final = (
    ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.operator,
    ast.unaryop, ast.expr_context, ast.JoinedStr,
)  # fmt: skip
_CLOSE: Final = frozenset({"isclose", "allclose", "array_equal"})
_FAR: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Unpredictable names of the functions that rewritten tests call."""

    tell: str = "_reached"
    """Reports that an assertion was reached."""
    keep: str = "_kept"
    """Returns its argument."""
    other: str = "_other"
    """Returns a value of the same type that is not equal to its argument."""


def called(call: ast.Call) -> str:
    """The last part of the called name."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Call | ast.Await) for inner in ast.walk(node))


def _is_made_here(node: ast.expr) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and called(node)[:1].isupper()
        and all(is_written_down(value) for value in node.args)
    )


def _expected_side(left: ast.expr, right: ast.expr) -> int | None:
    """Return which of two values is a literal in the test."""
    return next((at for at, side in ((1, right), (0, left)) if is_written_down(side)), None)


def is_written_down(node: ast.expr) -> bool:
    """Whether a value consists only of literals in the test."""
    if isinstance(node, ast.Call) and called(node) == "approx":
        return True
    return all(isinstance(inner, _WRITTEN) for inner in ast.walk(node))


def _origins(function: FUNCTION, name: str) -> list[ast.expr]:
    """Return the literals behind a name: an assignment, or parameters of the test.

    A name with a second use may also be an input of the code; changing it proves nothing.
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
    return stored if all(is_written_down(value) for value in stored) else []


def _parameters(decorator: ast.expr, name: str) -> list[ast.expr]:
    """Return the values that `pytest.mark.parametrize` gives to a name, if they can be read."""
    match decorator:
        case ast.Call(
            args=[names, ast.List(elts=rows) | ast.Tuple(elts=rows), *_], keywords=keywords
        ) if called(decorator) == "parametrize" and not keywords:
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
    """Return the constants of a value, without those that only control the comparison."""
    if isinstance(node, ast.Call):
        return [value for argument in node.args[:1] for value in _values(argument)]
    if any(isinstance(inner, ast.BinOp | ast.JoinedStr) for inner in ast.walk(node)):
        # A change of one constant might not change the computed value.
        return []
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Constant)]


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


@dataclass(slots=True, kw_only=True)
class _Inverter:
    """Rewrite files; `turn` says whether to invert their assertions."""

    words: Words
    turn: bool
    seed: int
    own: frozenset[str]
    """Assertion functions of the tests: inverted in their definition, not in their calls."""
    constants: set[str] = field(default_factory=set[str])
    """Numbers of the assertions with a replaced constant."""
    unsure: set[str] = field(default_factory=set[str])
    """Numbers of the assertions that correct code might still pass, in rare cases."""
    number: int = 0
    """The number of the last assertion."""
    scope: FUNCTION | None = None
    """The function that is being rewritten."""

    def rewrite(self, module: ast.Module) -> None:
        """Rewrite a file in place."""
        for node in ast.walk(module):
            if isinstance(node, FUNCTION):
                self.scope = node
                only_raising = not any(_is_assertion(inner, self.own) for inner in ast.walk(node))
                self._rewrite_body(node, only_raising=only_raising)

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
        if _is_assertion(node, self.own):
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
            if not self._change(node.test) and self.turn:
                node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
            return [node]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._turned_call(node, node.value)
        return [node]

    def _turned_call(self, node: ast.Expr, call: ast.Call) -> list[ast.stmt]:
        name = called(call)
        if self._change_call(name, call.args) or not self.turn:
            return [node]
        if name in _OPPOSITE and isinstance(call.func, ast.Attribute):
            call.func.attr = _OPPOSITE[name]
            return [node]
        return [_turned_around(node)]

    def _change_call(self, name: str, arguments: list[ast.expr]) -> bool:
        match arguments:
            case [test, *_] if name == "assertTrue":
                return self._change(test)
            case [first, second, *rest] if name in _EQUALITIES:
                sides = [first, second]
                changed = self._change_equal(sides)
                arguments[:] = [*sides, *rest]
                return changed
            case [first, second, *_] if name == "assertIn":
                return self._change_member(first, second)
            case [first, second, *_] if name in _ORDERS:
                less, more = (second, first) if _ORDERS[name] else (first, second)
                return self._change_order(less, more)
            case [first, second, *_] if name not in _OPPOSITE:
                # The other operand comes from the code under test.
                return any(
                    self._change_constant(side) for side in (second, first) if is_written_down(side)
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

    def _change(self, test: ast.expr) -> bool:
        """Change a condition in place; False if it can only be negated."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                # All operands: forged values in one operand would not show in a change of another.
                return True in [self._change(value) for value in values]
            case ast.Call(
                func=ast.Name(id="all"), args=[ast.GeneratorExp() | ast.ListComp() as made]
            ):
                return self._change_each(test, made)
            case ast.Call(args=[_, _, *_]) if called(test) in _CLOSE:
                return self._change_equal(test.args)
            case ast.Compare():
                return self._change_comparison(test)
            case _:
                return False

    def _change_comparison(self, test: ast.Compare) -> bool:
        sides = [test.left, *test.comparators]
        match test.ops:
            case [ast.In()]:
                return self._change_member(*sides)
            case [ast.Lt() | ast.LtE()]:
                return self._change_order(*sides)
            case [ast.Gt() | ast.GtE()]:
                return self._change_order(*reversed(sides))
            case ops if all(isinstance(op, ast.Eq) for op in ops):
                changed = self._change_equal(sides)
                test.left, test.comparators = sides[0], sides[1:]
                return changed
            case _:
                return False

    def _change_equal(self, sides: list[ast.expr]) -> bool:
        """Change an operand of an equality; the list is changed in place."""
        first, second = sides[-2:]
        side = _expected_side(first, second)
        if side is not None and self._change_constant((first, second)[side]):
            return True
        if len(sides) == len((first, second)):
            if any(self._change_origin(side) for side in (second, first)):
                return True
            if any(self._change_made(side) for side in (second, first)):
                return True
        at = -2 if _has_call(second) and not _has_call(first) else -1
        if not isinstance(sides[at], ast.Starred):
            word = self.words.other if self.turn else self.words.keep
            name = ast.Name(id=word, ctx=ast.Load())
            sides[at] = ast.Call(func=name, args=[sides[at]], keywords=[])
            return True
        return False

    def _change_member(self, member: ast.expr, container: ast.expr) -> bool:
        """Expect a member that is not in the container."""
        if is_written_down(container) or not is_written_down(member):
            return False
        return self._note_unsure(changed=self._change_constant(member, far=True))

    def _change_order(self, less: ast.expr, more: ast.expr) -> bool:
        """Expect a number that is out of range."""
        for side, sign in ((more, -1), (less, 1)):
            numbers = _values(side) if is_written_down(side) else []
            if len(numbers) != 1 or type(numbers[0].value) not in {int, float}:
                continue
            value = numbers[0].value
            if self.turn and isinstance(value, int | float):
                step = sign * (1000 * abs(value) + _FAR)
                numbers[0].value = value - step if _is_negative(side) else value + step
            return self._note_unsure(changed=True)
        return False

    def _change_constant(self, node: ast.expr, *, far: bool = False) -> bool:
        """Replace the first constant of a value by another one of the same type."""
        least = _FAR if far else 11
        for inner in _values(node):
            value = inner.value
            pick = random.Random(f"{self.seed} {self.number}")  # noqa: S311 - to repeat, not to hide
            extra = pick.randrange(least, 9 * least)
            match value:
                case bool():
                    new: bool | float | str | bytes = not value
                case int() | float():
                    new = value * 2 + extra
                case str():
                    new = value + pick.choice("qxz") + str(extra)
                case bytes():
                    new = value + b"%d" % extra
                case _:
                    continue
            if self.turn:
                inner.value = new
            self.constants.add(str(self.number))
            return True
        return False

    def _change_each(self, call: ast.Call, made: ast.GeneratorExp | ast.ListComp) -> bool:
        if any(each.is_async for each in made.generators) or not self._change(made.elt):
            return False
        # `all` of an empty sequence is true, which is not a forgery.
        empty = ast.List(elts=[ast.Constant(value=not self.turn)], ctx=ast.Load())
        each = ast.ListComp(elt=made.elt, generators=made.generators)
        call.args = [ast.BoolOp(op=ast.Or(), values=[each, empty])]
        return True

    def _change_origin(self, side: ast.expr) -> bool:
        """Change the constants behind a name, if the name has no other use."""
        if self.scope is None or not isinstance(side, ast.Name):
            return False
        origins = _origins(self.scope, side.id)
        # All of them, because each may be a separate test case.
        return bool(origins) and False not in [self._change_constant(origin) for origin in origins]

    def _change_made(self, side: ast.expr) -> bool:
        """Change the arguments of an expected object: `Point(3, 4)`."""
        if not _is_made_here(side):
            return False
        return self._note_unsure(changed=any(self._change_constant(value) for value in side.args))

    def _note_unsure(self, *, changed: bool) -> bool:
        if changed:
            self.unsure.add(str(self.number))
        return changed


def _is_assertion(node: ast.AST, own: frozenset[str] = frozenset()) -> bool:
    if isinstance(node, ast.Assert):
        # `assert False` marks code that must not be reached.
        return not isinstance(node.test, ast.Constant) or bool(node.test.value)
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    name = called(node.value)
    if name in _RAISING or name.startswith(("assertRaises", "assertWarns", "assertLogs")):
        return False
    if name in own:
        return False
    return name.startswith("assert_") or (name.startswith("assert") and name[6:7].isupper())


def _own_assertions(modules: Iterable[ast.Module]) -> frozenset[str]:
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
    """Yield the numbers of assertions outside of branches, up to an early return of the test."""
    given = _parameters_of(node)
    for inner in ast.iter_child_nodes(node):
        match inner:
            case ast.If(test=test, body=[*_, ast.Return()]) if _is_known_before(test, given):
                return
            case ast.Expr(
                value=ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(n))])
            ):
                if name == words.tell:
                    yield n
            case _ if not isinstance(inner, _BRANCHES):
                yield from _certain_numbers(inner, words)
            case _:
                pass


def _parameters_of(node: ast.AST) -> frozenset[str]:
    """Return the parameters of a test that its `parametrize` marks set."""
    marks = node.decorator_list if isinstance(node, FUNCTION) else []
    names: set[str] = set()
    for mark in marks:
        if not (isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize")):
            continue
        for word in ast.walk(mark.args[0]) if mark.args else ():
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                names.update(part.strip() for part in word.value.split(","))
    return frozenset(names)


def _is_known_before(test: ast.expr, given: frozenset[str]) -> bool:
    """Whether a condition depends only on parameters and the platform, not on tested code."""
    known = given | {"sys", "os", "platform"}
    parts = list(ast.walk(test))
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    calls = any(isinstance(part, ast.Call | ast.NamedExpr | ast.Await) for part in parts)
    return bool(names) and not calls and known.issuperset(names)


def _is_rewritten(path: PurePosixPath, protected: tuple[PurePosixPath, ...]) -> bool:
    below = any(path == root or root in path.parents for root in protected)
    return below and path.suffix == ".py" and path.name != "conftest.py"


def rewrite_tests(
    tree: Tree, protected: tuple[PurePosixPath, ...], *, words: Words, seed: int
) -> RewrittenTests:
    """Rewrite every protected Python file; files that cannot be parsed stay unchanged."""
    paths = [path for path in sorted(tree.files) if _is_rewritten(path, protected)]
    own = _own_assertions(module for path in paths if (module := parse_module(tree, path)))
    same = _Inverter(words=words, turn=False, seed=seed, own=own)
    turned = _Inverter(words=words, turn=True, seed=seed, own=own)
    within: dict[str, frozenset[str]] = {}
    without: set[str] = set()
    files: dict[bool, dict[PurePosixPath, TreeFile]] = {False: {}, True: {}}
    for path in paths:
        for inverter in (same, turned):
            module = parse_module(tree, path)
            if module is None:
                break
            inverter.rewrite(module)
            source = ast.unparse(ast.fix_missing_locations(module)).encode()
            files[inverter.turn][path] = TreeFile(source + b"\n", tree.files[path].executable)
            for test in ast.walk(module):
                if isinstance(test, FUNCTION) and test.name.startswith("test"):
                    numbers = frozenset(_certain_numbers(test, words))
                    within[test.name] = within.get(test.name, frozenset()) | numbers
                    if not numbers:
                        # Of tests with the same name, one may have no assertion.
                        without.add(test.name)
    unsure = frozenset(same.unsure | turned.unsure)
    return RewrittenTests(
        same=files[False],
        turned=files[True],
        constants=frozenset(same.constants | turned.constants) - unsure,
        unsure=unsure,
        within={name: numbers for name, numbers in within.items() if name not in without},
    )
