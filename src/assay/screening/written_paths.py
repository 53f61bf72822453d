"""Finds the files that a Python program writes, as far as their paths are in the source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from assay.screening.name_resolver import Names, Scope
from assay.screening.rules import (
    CHANGERS,
    EXPANDERS,
    OPENERS,
    PATH_CHANGERS,
    PATH_JOINS,
    PATHS,
    ScreeningPolicy,
)

_DEEPEST: Final = 6
_LONGEST: Final = 4096
_WRITING: Final = frozenset("wax+")
_WRITING_FLAGS: Final = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A path in the source, or its beginning."""

    text: str
    whole: bool

    def joined(self, other: "_Written | None") -> "_Written":
        if other is None or not self.whole:
            return _Written(text=self.text.rstrip("/") + "/", whole=False)
        if other.text.startswith("/"):
            return other
        return _Written(text=f"{self.text.rstrip('/')}/{other.text}", whole=other.whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Finds calls that write files outside the folders that the policy allows."""

    names: Names
    policy: ScreeningPolicy

    def outside(self, call: ast.Call, scope: Scope) -> Iterator[str]:
        """Yield the outside paths that a call writes, removes or changes."""
        for node in self._written_by(call, scope):
            path = self._path(node, scope)
            if path is not None and self._is_outside(path):
                yield path.text

    def _written_by(self, call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
        called = self.names.meant_by(call.func, scope)
        first = call.args[0] if call.args else _keyword(call, "file")
        if called & OPENERS and first is not None and _writes(call, 1):
            yield first
        if "os.open" in called and first is not None and _flags_write(call):
            yield first
        for name in called & CHANGERS.keys():
            yield from (call.args[place] for place in CHANGERS[name] if place < len(call.args))
        if isinstance(call.func, ast.Attribute) and self._is_path(call.func.value, scope):
            method = call.func.attr
            if method in PATH_CHANGERS or (method == "open" and _writes(call, 0)):
                yield call.func.value

    def _is_outside(self, path: _Written) -> bool:
        if path.whole:
            return self.policy.is_outside(path.text)
        # Of an incomplete path, only whole folders count: "/" may still become "/app".
        folder = path.text.rpartition("/")[0]
        return bool(folder) and self.policy.is_outside(folder)

    def _is_path(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        if depth > _DEEPEST:
            return False
        match node:
            case ast.Call(func=ast.Attribute(attr="home", value=value)):
                return bool(self.names.meant_by(value, scope) & PATHS)
            case ast.Call():
                return bool(self.names.meant_by(node.func, scope) & PATHS)
            case ast.BinOp(op=ast.Div(), left=left):
                return self._is_path(left, scope, depth + 1)
            case ast.Name(id=name):
                bound = self.names.value_of(name, scope)
                return bound is not None and self._is_path(*bound, depth + 1)
            case _:
                return False

    def _path(self, node: ast.expr, scope: Scope, depth: int = 0) -> _Written | None:
        found: _Written | None = None
        match node:
            case _ if depth > _DEEPEST:
                pass
            case ast.Constant(value=str() as text):
                found = _Written(text=text[:_LONGEST], whole=True)
            case ast.Constant(value=bytes() as raw):
                found = _Written(text=raw[:_LONGEST].decode("utf-8", "replace"), whole=True)
            case ast.JoinedStr(values=[ast.Constant(value=str() as text), *rest]):
                found = _Written(text=text[:_LONGEST], whole=not rest)
            case ast.BinOp(op=ast.Add() | ast.Div()):
                found = self._combined(node, scope, depth + 1)
            case ast.Name(id=name):
                bound = self.names.value_of(name, scope)
                found = self._path(*bound, depth + 1) if bound else None
            case ast.Call():
                found = self._called(node, scope, depth + 1)
            case _:
                pass
        return found

    def _combined(self, node: ast.BinOp, scope: Scope, depth: int) -> _Written | None:
        begin, end = self._path(node.left, scope, depth), self._path(node.right, scope, depth)
        if begin is None:
            return None
        if isinstance(node.op, ast.Div):
            return begin.joined(end)
        if not begin.whole or end is None:
            return _Written(text=begin.text, whole=False)
        return _Written(text=begin.text + end.text, whole=end.whole)

    def _called(self, call: ast.Call, scope: Scope, depth: int) -> _Written | None:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "home":
            is_home = self.names.meant_by(call.func.value, scope) & PATHS
            return _Written(text="~", whole=True) if is_home else None
        called = self.names.meant_by(call.func, scope)
        if not called & (PATHS | PATH_JOINS | EXPANDERS) or not call.args:
            return None
        path = self._path(call.args[0], scope, depth)
        for part in call.args[1:]:
            path = path and path.joined(self._path(part, scope, depth))
        return path


def _writes(call: ast.Call, place: int) -> bool:
    mode = call.args[place] if len(call.args) > place else _keyword(call, "mode")
    match mode:
        case ast.Constant(value=str() as text):
            return bool(_WRITING & set(text))
        case _:
            return False


def _flags_write(call: ast.Call) -> bool:
    flags = call.args[1] if len(call.args) > 1 else _keyword(call, "flags")
    named = ast.walk(flags) if flags is not None else ()
    return any(isinstance(node, ast.Attribute) and node.attr in _WRITING_FLAGS for node in named)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)
