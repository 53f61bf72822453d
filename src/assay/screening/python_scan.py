"""Checks the syntax tree of a Python program against a policy before it runs.

This includes the files that the program writes, as far as their paths are in the source.
"""

import ast
import codecs
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from assay.screening.rules import (
    CHANGERS,
    CLIMBS,
    EXPANDERS,
    OPENERS,
    PATH_CHANGERS,
    PATH_JOINS,
    PATHS,
    Remark,
    ScreeningPolicy,
)
from assay.text.python_names import IMPORTERS, Names, Scope, text_of

_DEEPEST: Final = 6
_LONGEST_PATH: Final = 4096
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
                found = _Written(text=text[:_LONGEST_PATH], whole=True)
            case ast.Constant(value=bytes() as raw):
                found = _Written(text=raw[:_LONGEST_PATH].decode("utf-8", "replace"), whole=True)
            case ast.JoinedStr(values=[ast.Constant(value=str() as text), *rest]):
                found = _Written(text=text[:_LONGEST_PATH], whole=not rest)
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


_ENCODINGS: Final = frozenset({"utf-8", "utf-8-sig", "ascii", "iso8859-1", "iso8859-15", "cp1252"})
"""Encodings in which source code reads as it runs."""

_FIELD: Final = re.compile(r"\{[^{}]{1,300}[}:!]")
_SPECIAL: Final = re.compile(r"[.\[](__\w{1,40}__)")
_GETTERS: Final = frozenset(
    {"builtins.getattr", "builtins.hasattr", "builtins.setattr", "builtins.delattr"}
)
_LATE_GETTERS: Final = frozenset({"operator.attrgetter", "operator.methodcaller"})
_HIDDEN_INSIDE: Final = frozenset({"subprocess", "socket", "ctypes", "pty"})
"""Modules that other modules hold as attributes."""
_HOLDERS: Final = frozenset({"os", "builtins", "posix", "sys"})
_UNPICKLERS: Final = frozenset({"pandas.read_pickle"})
_ADDRESS: Final = re.compile(r"(?:https?|ftps?|s3|gs)://", re.IGNORECASE)
_LONGEST: Final = 80

Say = Callable[[str, str], None]


def look_at_python(content: bytes, policy: ScreeningPolicy) -> list[Remark]:
    """Return what the policy flags in a program; nothing if the syntax is invalid."""
    try:
        tree = _parsed(content)
    except (RecursionError, MemoryError):
        return [_unreadable("is nested too deeply to be read before it runs")]
    except _StrangeEncodingError as error:
        return [_unreadable(f"is encoded in {error}, which hides what it says")]
    except (SyntaxError, ValueError, LookupError):
        # It will not run, and the interpreter explains the reason better.
        return []
    return _Look(tree, policy).remarks()


def _is_true(node: ast.Call, name: str) -> bool:
    """Whether a keyword argument is present and not a false constant."""
    given = [keyword.value for keyword in node.keywords if keyword.arg == name]
    return any(not (isinstance(one, ast.Constant) and not one.value) for one in given)


class _StrangeEncodingError(Exception):
    """The program declares an encoding that no honest program needs."""


def _unreadable(explanation: str) -> Remark:
    return Remark(line=1, rule="unreadable", explanation=explanation)


def _parsed(content: bytes) -> ast.Module:
    declared, _ = tokenize.detect_encoding(BytesIO(content).readline)
    if codecs.lookup(declared).name not in _ENCODINGS:
        raise _StrangeEncodingError(declared[:_LONGEST])
    with warnings.catch_warnings():
        # The interpreter's warnings are not for Assay's user.
        warnings.simplefilter("ignore")
        return ast.parse(content)


class _Look:
    """The scan of one program."""

    def __init__(self, tree: ast.Module, policy: ScreeningPolicy) -> None:
        starred: dict[str, list[str]] = {}
        for name in policy.calls:
            module, _, function = name.rpartition(".")
            starred.setdefault(module, []).append(function)
        self._policy = policy
        self._names = Names(tree, starred=starred)
        self._writing = Writing(names=self._names, policy=policy)

    def remarks(self) -> list[Remark]:
        return [
            Remark(line=getattr(node, "lineno", 1), rule=rule, explanation=explanation)
            for node, scope in self._names.nodes
            for rule, explanation in self._of(node, scope)
        ]

    def _of(self, node: ast.AST, scope: Scope) -> Iterator[tuple[str, str]]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._import(node)
            case ast.Name(ctx=ast.Load()):
                if node.id == "__builtins__":
                    yield from self._attribute(node.id)
                yield from self._mention(node, scope)
            case ast.Attribute():
                yield from self._access(node, scope)
            case ast.Subscript():
                yield from self._lookup(node, scope)
            case ast.Call():
                yield from self._call(node, scope)
                for path in self._writing.outside(node, scope):
                    yield "write_outside", f"writes {path[:_LONGEST]!r}, outside the workspace"
            case ast.Constant(value=str() as text):
                for name in _SPECIAL.findall(" ".join(_FIELD.findall(text))):
                    yield from self._attribute(name)
            case _:
                pass

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(alias.name)
        elif node.level == 0 and node.module:
            whole = list(self._module(node.module))
            yield from whole
            for alias in node.names if not whole else ():
                name = f"{node.module}.{alias.name}"
                yield from self._module(name)
                yield from self._function(name)

    def _mention(self, node: ast.expr, scope: Scope) -> Iterator[tuple[str, str]]:
        for name in sorted(self._names.meant_by(node, scope)):
            yield from self._function(name)

    def _access(self, node: ast.Attribute, scope: Scope) -> Iterator[tuple[str, str]]:
        yield from self._attribute(node.attr)
        if (
            node.attr in CLIMBS
            and node.attr not in self._policy.allow
            and self._is_climb(node.value)
        ):
            yield "attribute", f"{node.attr} of a value's class leads to every class there is"
        if node.attr == "__code__" and not isinstance(node.ctx, ast.Load):
            yield "attribute", "replacing __code__ changes what a function does"
        yield from self._mention(node, scope)

    def _is_climb(self, value: ast.expr) -> bool:
        match value:
            case ast.Attribute(attr="__class__") | ast.Call(func=ast.Name(id="type")):
                return True
            case ast.Subscript(value=ast.Attribute(attr=attr)):
                return attr in CLIMBS
            case _:
                return False

    def _lookup(self, node: ast.Subscript, scope: Scope) -> Iterator[tuple[str, str]]:
        key = text_of(node.slice)
        if key is None:
            return
        yield from self._attribute(key)
        for name in sorted(self._names.meant_by(node, scope)):
            yield from self._module(name)
            yield from self._function(name)

    def _call(self, node: ast.Call, scope: Scope) -> Iterator[tuple[str, str]]:
        called = self._names.meant_by(node.func, scope)
        for name in sorted(called & self._policy.builders.keys()):
            yield "call", f"{name} {self._policy.builders[name]}"
        if called & IMPORTERS and node.args:
            yield from self._dynamic_import(node.args[0])
        if called & _GETTERS and len(node.args) > 1:
            yield from self._getattr(node, scope)
        yield from self._of_data(node, called)
        if "builtins.vars" in called and node.args:
            for holder in sorted(self._names.meant_by(node.args[0], scope) & _HOLDERS):
                yield "call", f"vars({holder}) gives every function of {holder}"
        if called & _LATE_GETTERS:
            for argument in node.args:
                for part in (text_of(argument) or "").split("."):
                    yield from self._attribute(part)

    def _of_data(self, node: ast.Call, called: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Flag data-library calls that run code in files or download them."""
        for name in sorted(called - set(self._policy.allow)):
            if name in _UNPICKLERS or (name == "numpy.load" and _is_true(node, "allow_pickle")):
                yield "call", f"{name} runs code that is in the file"
            if name.startswith("pandas.read_") and node.args:
                address = text_of(node.args[0]) or ""
                if _ADDRESS.match(address):
                    yield "call", f"{name} fetches {address[:_LONGEST]!r} over the network"

    def _dynamic_import(self, argument: ast.expr) -> Iterator[tuple[str, str]]:
        name = text_of(argument)
        if name is not None:
            yield from self._module(name)
            return
        match argument:
            case ast.JoinedStr(values=[ast.Constant(value=str() as begin), *_]) if "." in begin:
                # Within the named package, for every rest of the name.
                yield from self._module(begin.partition(".")[0])
            case _:
                if not IMPORTERS & set(self._policy.allow):
                    yield "dynamic_import", "imports a module whose name is made at run time"

    def _getattr(self, node: ast.Call, scope: Scope) -> Iterator[tuple[str, str]]:
        name = text_of(node.args[1])
        holders = self._names.meant_by(node.args[0], scope)
        if name is not None:
            yield from self._attribute(name)
            for holder in sorted(holders):
                yield from self._function(f"{holder}.{name}")
            return
        for holder in sorted(holders & _HOLDERS):
            yield "call", f"picks a function of {holder} by a name that is made at run time"

    def _module(self, name: str) -> Iterator[tuple[str, str]]:
        if refused := self._policy.refused_import(name):
            yield "import", f"imports {refused[0]}: {refused[1]}"

    def _function(self, name: str) -> Iterator[tuple[str, str]]:
        parts = name.split(".")
        # Also through another module that holds it: `shutil.os.system`, `random._os.system`.
        short = ".".join((parts[-2].lstrip("_"), parts[-1])) if len(parts) > 1 else name
        for known in (name, short):
            if known in self._policy.calls:
                yield "call", f"{known.removeprefix('builtins.')} {self._policy.calls[known]}"
                return
        for part in parts[1:-1]:
            inner = part.lstrip("_")
            if inner in _HIDDEN_INSIDE and inner in self._policy.imports:
                yield "call", f"{inner} by way of {parts[0]} {self._policy.imports[inner]}"
                return

    def _attribute(self, name: str) -> Iterator[tuple[str, str]]:
        if name in self._policy.attributes:
            yield "attribute", f"{name} {self._policy.attributes[name]}"
