"""Resolve the names in a Python program to modules and functions, as far as the source shows them.

The code uses a queue in place of the call stack and bounds every walk, because a hostile program
may try to crash its reader.
"""

import ast
import builtins
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

IMPORTERS: Final = frozenset(
    {"builtins.__import__", "importlib.import_module", "importlib.__import__"}
)
"""Functions that import the module of a given name."""
_DEEPEST: Final = 24
"""The maximum number of steps from a name to its meaning."""
_MOST_MEANINGS: Final = 16
_BUILTINS: Final = frozenset(dir(builtins))
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_STEPS = ast.Name | ast.Attribute | ast.Subscript | ast.Call


@dataclass(eq=False, kw_only=True)
class Scope:
    """The module, class or function that binds names."""

    kind: str
    parent: "Scope | None" = None
    modules: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Names that imports bind, and the full names that they stand for."""
    values: dict[str, list[ast.expr | None]] = field(
        default_factory=dict[str, list[ast.expr | None]]
    )
    """Names with other bindings: an expression, or None if it is unknown."""
    elsewhere: set[str] = field(default_factory=set[str])
    """Names that are declared `global` or `nonlocal`."""

    def binds(self, name: str) -> bool:
        return name not in self.elsewhere and (name in self.modules or name in self.values)


def _children(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
    inside = scope
    outer: list[ast.AST] = []
    if isinstance(node, _FUNCTIONS):
        inside = Scope(kind="function", parent=scope)
        outer = [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]
        if not isinstance(node, ast.Lambda):
            outer += node.decorator_list
    elif isinstance(node, ast.ClassDef):
        inside = Scope(kind="class", parent=scope)
        outer = [*node.bases, *node.keywords, *node.decorator_list]
    elif isinstance(node, _COMPREHENSIONS):
        inside = Scope(kind="function", parent=scope)
    outside = frozenset(map(id, outer))
    for child in ast.iter_child_nodes(node):
        yield child, scope if id(child) in outside else inside


def _bind(node: ast.AST, scope: Scope) -> None:
    match node:
        case ast.Global() | ast.Nonlocal():
            scope.elsewhere.update(node.names)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.values.setdefault(name, []).append(None)
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            scope.values.setdefault(name, []).append(None)
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.NamedExpr(target=ast.Name(id=name)):
            scope.values.setdefault(name, []).append(node.value)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            scope.values.setdefault(name, []).append(value)
        case _:
            pass


def _imported(node: ast.AST, starred: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, and their full names."""
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        case ast.ImportFrom(level=0, module=str(module), names=aliases):
            for alias in aliases:
                if alias.name == "*":
                    yield from ((name, f"{module}.{name}") for name in starred.get(module, ()))
                else:
                    yield alias.asname or alias.name, f"{module}.{alias.name}"
        case _:
            pass


class Names:
    """Looks up names as the interpreter would.

    `starred` lists the names that `from MODULE import *` is assumed to import. With `loose`, a name
    also stands for all imports of that name in the program, or else for itself: for warnings, where
    an additional meaning is better than a missing one.
    """

    def __init__(
        self,
        tree: ast.Module,
        *,
        starred: Mapping[str, Iterable[str]] | None = None,
        loose: bool = False,
    ) -> None:
        self._loose = loose
        self._top = Scope(kind="module")
        self.nodes: list[tuple[ast.AST, Scope]] = []
        """Every node with its scope, in the order of `ast.walk`."""
        self.imports: dict[str, set[str]] = {}
        """Names that imports bind anywhere, and the full names that they stand for."""
        deleted: set[str] = set()
        waiting: deque[tuple[ast.AST, Scope]] = deque([(tree, self._top)])
        while waiting:
            node, scope = waiting.popleft()
            self.nodes.append((node, scope))
            for name, meant in _imported(node, starred or {}):
                scope.modules.setdefault(name, set()).add(meant)
                self.imports.setdefault(name, set()).add(meant)
            _bind(node, scope)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                deleted.add(node.id)
            waiting.extend(_children(node, scope))
        self._firm = {name for statement in tree.body for name in _defined(statement)} - deleted
        """Names that the module certainly defines, so that they do not mean a built-in."""
        self._known: dict[tuple[int, str], frozenset[str]] = {}

    def meant_by(self, node: ast.expr, scope: Scope, depth: int = 0) -> frozenset[str]:
        """Return the full names that an expression may stand for: `os.system`, `builtins.eval`."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute) and len(attributes) < _DEEPEST:
            attributes.append(node.attr)
            node = node.value
        if depth > _DEEPEST or not isinstance(node, ast.Name | ast.Subscript | ast.Call):
            return frozenset()
        match node:
            case ast.Name():
                found = self._of_name(node.id, scope, depth)
                if self._loose:
                    found |= self.imports.get(node.id, {node.id})
            case ast.Subscript():
                found = self._of_subscript(node, scope, depth)
            case ast.Call():
                found = self._of_call(node, scope, depth)
        tail = "".join(f".{name}" for name in reversed(attributes))
        return frozenset(f"{name}{tail}" for name in found)

    def value_of(self, name: str, scope: Scope) -> tuple[ast.expr, Scope] | None:
        """Return the expression that a name is bound to, if there is exactly one."""
        home = self._home(name, scope)
        if home is None or name in home.modules:
            return None
        known = [value for value in home.values[name] if value is not None]
        # Each assignment is recorded twice: as a statement with its value, and as a stored name.
        if len(known) == 1 and len(home.values[name]) == 2:  # noqa: PLR2004 - see above
            return known[0], home
        return None

    def _of_name(self, name: str, scope: Scope, depth: int) -> frozenset[str]:
        home = self._home(name, scope)
        key = id(home), name
        if key not in self._known:
            # Names may refer to each other, in a cycle or in exponentially many ways.
            self._known[key] = frozenset()
            self._known[key] = self._looked_up(name, home, depth)
        return self._known[key]

    def _looked_up(self, name: str, home: Scope | None, depth: int) -> frozenset[str]:
        found: set[str] = set()
        if home is not None:
            found |= home.modules.get(name, set())
            known = [value for value in home.values.get(name, ()) if isinstance(value, _STEPS)]
            for value in known[:_MOST_MEANINGS]:
                found |= self.meant_by(value, home, depth + 1)
        may_be_builtin = home is None or (home is self._top and name not in self._firm)
        if name in _BUILTINS and may_be_builtin:
            found.add(f"builtins.{name}")
        return frozenset(sorted(found, key=len)[:_MOST_MEANINGS])

    def _of_subscript(self, node: ast.Subscript, scope: Scope, depth: int) -> frozenset[str]:
        """Follow `sys.modules["os"]`, `vars(os)["system"]` and `os.__dict__["system"]`."""
        key = text_of(node.slice)
        if key is None:
            return frozenset()
        holder = node.value
        if isinstance(holder, ast.Attribute) and holder.attr == "__dict__":
            return _with(self.meant_by(holder.value, scope, depth + 1), key)
        if isinstance(holder, ast.Call):
            called = self.meant_by(holder.func, scope, depth + 1)
            if "builtins.vars" in called and holder.args:
                return _with(self.meant_by(holder.args[0], scope, depth + 1), key)
            if "builtins.globals" in called:
                return self._of_name(key, self._top, depth + 1)
        if "sys.modules" in self.meant_by(holder, scope, depth + 1):
            return frozenset({key})
        return frozenset()

    def _of_call(self, node: ast.Call, scope: Scope, depth: int) -> frozenset[str]:
        """Follow `__import__("os")`, `import_module("os")` and `getattr(os, "system")`."""
        called = self.meant_by(node.func, scope, depth + 1)
        if called & IMPORTERS and node.args:
            name = text_of(node.args[0])
            return frozenset({name} if name else ())
        if "builtins.getattr" in called and len(node.args) > 1:
            name = text_of(node.args[1])
            return (
                _with(self.meant_by(node.args[0], scope, depth + 1), name) if name else frozenset()
            )
        return frozenset()

    def _home(self, name: str, scope: Scope) -> Scope | None:
        here: Scope | None = scope
        while here is not None:
            # Functions in a class do not see the names of the class body.
            is_seen = here.kind != "class" or here is scope
            if is_seen and here.binds(name):
                return here
            here = here.parent
        return None


def _defined(statement: ast.stmt) -> tuple[str, ...]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.ImportFrom():
            return tuple(alias.asname or alias.name for alias in statement.names)
        case _:
            # Assignments do not count: `eval = eval` is still the built-in.
            return ()


def _with(names: frozenset[str], key: str) -> frozenset[str]:
    return frozenset(f"{name}.{key}" for name in names)


def text_of(node: ast.AST, depth: int = 0) -> str | None:
    """Return the text of a constant expression, concatenated from parts if necessary."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right) if depth < _DEEPEST:
            first, second = text_of(left, depth + 1), text_of(right, depth + 1)
            return None if first is None or second is None else first + second
        case ast.JoinedStr(values=values) if depth < _DEEPEST:
            pieces = [text_of(value, depth + 1) for value in values]
            return None if None in pieces else "".join(filter(None, pieces))
        case ast.FormattedValue(value=value, format_spec=None) if depth < _DEEPEST:
            return text_of(value, depth + 1)
        case _:
            return None
