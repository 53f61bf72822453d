"""Extract definitions from a Python module, with all definitions that they need. Pure.

Only names are followed: other statements of the module are left out. The snippet's test fails if
they mattered.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_IMPORTS = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Module:
    """The source of a module, and the names that each statement binds."""

    source: str
    tree: ast.Module

    @cached_property
    def binders(self) -> Mapping[str, tuple[ast.stmt, ...]]:
        """The top-level statements that bind each name."""
        found: dict[str, tuple[ast.stmt, ...]] = {}
        for statement in self.tree.body:
            for name in _bound_by(statement):
                found[name] = (*found.get(name, ()), statement)
        return found

    @cached_property
    def tests(self) -> tuple[str, ...]:
        """The names of top-level test functions and classes."""
        return tuple(
            node.name
            for node in self.tree.body
            if isinstance(node, _DEFINITIONS) and node.name.lower().startswith("test")
        )

    def reach(self, names: Iterable[str]) -> frozenset[str]:
        """Return these names of the module, with all that they need directly or indirectly."""
        reached: set[str] = set()
        waiting = [name for name in names if name in self.binders]
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            for statement in self.binders[name]:
                if not isinstance(statement, _IMPORTS):
                    waiting.extend(_names_in(statement) & self.binders.keys())
        return frozenset(reached)

    def taken_from(self, name: str, is_wanted: Callable[[str], bool]) -> frozenset[str]:
        """Return the names that a definition takes, however indirectly, from wanted modules."""
        reached = self.reach((name,))
        found: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = (alias for alias in node.names if _local_name(alias) in reached)
                found.update(alias.name for alias in names if is_wanted(node.module))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if _local_name(alias) in reached and is_wanted(alias.name):
                        found |= self._attributes(reached, alias.asname or alias.name)
        return frozenset(found)

    def _attributes(self, names: Iterable[str], owner: str) -> set[str]:
        statements = [one for name in names for one in self.binders.get(name, ())]
        return {
            node.attr
            for statement in statements
            for node in ast.walk(statement)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == owner
        }

    def cut(self, names: Iterable[str]) -> str:
        """Return a module with these names and their dependencies, in the original order."""
        needed = self.reach(names)
        imports: list[str] = []
        rest: list[str] = []
        for statement in self.tree.body:
            if isinstance(statement, _IMPORTS):
                imports.extend(_imported(statement, needed))
            elif needed & set(_bound_by(statement)):
                rest.append(self._text(statement))
        head = "\n".join(imports)
        return "\n\n\n".join(part for part in (head, *rest) if part) + "\n"

    def _text(self, statement: ast.stmt) -> str:
        decorators = statement.decorator_list if isinstance(statement, _DEFINITIONS) else []
        if not decorators:
            return ast.get_source_segment(self.source, statement) or ast.unparse(statement)
        lines = self.source.splitlines()
        first = min(decorator.lineno for decorator in decorators)
        return "\n".join(lines[first - 1 : statement.end_lineno])


def read_module(source: str) -> Module | None:
    """Parse a module; None if it is not Python or has a star import."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    module = Module(source, tree)
    starred = any(alias.name == "*" for node in _imports_in(tree) for alias in node.names)
    return None if starred else module


def imports_of(source: str) -> frozenset[str]:
    """Return the dotted names of all imports of a module; `.` for a relative import."""
    found: set[str] = set()
    for node in _imports_in(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            found.add("." if node.level or not node.module else node.module)
    return frozenset(found)


def definition_of(source: str, name: str) -> str:
    """Return one definition without comments and layout; empty if there is none."""
    module = read_module(source)
    for statement in module.binders.get(name, ()) if module else ():
        if isinstance(statement, _DEFINITIONS):
            return ast.unparse(statement)
    return ""


def _imports_in(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, _IMPORTS))


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
    elif isinstance(statement, _IMPORTS):
        for alias in statement.names:
            yield _local_name(alias)
    elif not isinstance(statement, ast.Expr):
        # This includes names that nested statements bind: `try: import x`, `for`, `with`.
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.alias):
                yield _local_name(node)


def _local_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _names_in(statement: ast.stmt) -> set[str]:
    # This is a superset: a local variable of the same name counts too.
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} | {
        argument.arg for node in ast.walk(statement) for argument in _arguments(node)
    }


def _arguments(node: ast.AST) -> Sequence[ast.arg]:
    # A test requests a fixture by a parameter's name.
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()
    return (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)


def _imported(statement: ast.Import | ast.ImportFrom, needed: frozenset[str]) -> Iterator[str]:
    future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    kept = [alias for alias in statement.names if future or _local_name(alias) in needed]
    if not kept:
        return
    if isinstance(statement, ast.Import):
        yield ast.unparse(ast.Import(names=kept))
    else:
        yield ast.unparse(
            ast.ImportFrom(module=statement.module, names=kept, level=statement.level)
        )
