"""Detect in-memory changes of the test runner: replaced functions and classes.

It also checks the standard library modules that the tests use for expected values, detects changes
through the process memory, and restricts access to that memory.
"""

import ast
import ctypes
import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

_PACKAGES = ("_pytest", "pluggy", "pytest", "unittest", "builtins", "iniconfig")
# Tests replace these for good reasons, and no verdict depends on them.
_LEFT_ALONE = frozenset({"builtins.input", "builtins.print", "builtins.open", "builtins._"})
# pytest itself replaces this one.
_REPLACED_BY_PYTEST = ("pdb", "set_trace")
_KINDS = (FunctionType, type, type(len), staticmethod, classmethod, property)

# Importing these draws, prints or opens a window.
_LOUD = frozenset({"antigravity", "idlelib", "lib2to3", "test", "this", "tkinter", "turtle"})
# Names that runners and tests set intentionally.
_MEANT = re.compile(r"_|.*hook|.*warn")

Entry = tuple[object, str, object, object, str]
"""The holder, the name in it, the original value, its code, and a label."""


def watch_runner() -> Callable[[], list[str]]:
    """Record the state of the runner; the returned function lists the differences."""
    entries: list[Entry] = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES:
            entries += _entries_of(module, name)
    lookup, absent = vars, object()
    hooks = (sys.gettrace, sys.getprofile)
    before = tuple(hook() for hook in hooks)

    def differences() -> list[str]:
        found = [
            label
            for holder, name, value, code, label in entries
            if (now := lookup(holder).get(name, absent)) is not value
            or (code is not None and getattr(now, "__code__", code) is not code)
        ]
        if tuple(hook() for hook in hooks) != before:
            found.append("sys.settrace")
        return found

    return differences


def watch_library(files: "list[Path]", folders: "list[str]") -> Callable[[], list[str]]:
    """Record the modules that these files import; the returned function lists the replacements.

    Assignments in the files themselves are allowed. Modules in `folders` with the name of a library
    module are skipped.
    """
    places = {Path(), Path("src"), Path("lib"), *map(Path, folders), *(f.parent for f in files)}
    texts = [file.read_text(errors="replace") for file in files if file.is_file()]
    names = {name for text in texts for name in _imported(text)} & sys.stdlib_module_names
    before: list[tuple[ModuleType, str, object]] = []
    for name in sorted(names - _LOUD):
        if any((place / name).is_dir() or (place / f"{name}.py").is_file() for place in places):
            continue
        try:
            module = importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - the module is missing on this machine
            continue
        before += [
            (module, key, value)
            for key, value in list(vars(module).items())
            if callable(value) and not _MEANT.match(key)
        ]
    text, lookup = "\n".join(texts), vars

    def replaced() -> list[str]:
        return [
            f"{module.__name__}.{key}"
            for module, key, value in before
            if lookup(module).get(key) is not value
            and (module.__name__, key) != _REPLACED_BY_PYTEST
            and not re.search(rf"\.{re.escape(key)}\s*=[^=]", text)
        ]

    return replaced


def _imported(text: str) -> Iterator[str]:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def _entries_of(module: ModuleType, name: str) -> list[Entry]:
    entries: list[Entry] = []
    for key, value in list(vars(module).items()):
        label = f"{name}.{key}"
        if not isinstance(value, _KINDS) or label in _LEFT_ALONE:
            continue
        entries.append((module, key, value, getattr(value, "__code__", None), label))
        if isinstance(value, type) and value.__module__ == name:
            entries += [
                (
                    value,
                    attribute,
                    member,
                    getattr(member, "__code__", None),
                    f"{label}.{attribute}",
                )
                for attribute, member in list(vars(value).items())
                if isinstance(member, _KINDS)
            ]
    return entries


_SET_DUMPABLE = 4
_NUMBER_AT = 24
"""The offset at which CPython stores the version of a dictionary."""
# By module: the classes whose methods decide a result; empty for the module itself.
_DECISIVE: "dict[str, tuple[str, ...]]" = {
    "_pytest.runner": ("", "CallInfo"),
    "_pytest.reports": ("", "BaseReport", "TestReport"),
    "_pytest._code.code": ("ExceptionInfo",),
    "_pytest.outcomes": ("", "OutcomeException", "Failed", "Skipped"),
    "unittest.case": ("", "_Outcome", "TestCase"),
    "unittest.result": ("", "TestResult"),
    "pluggy._callers": ("",),
    "pluggy._execution": ("",),
}


def hide_memory() -> None:
    """Keep programs that the tests start from accessing the memory of this process."""
    try:
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError):  # not Linux
        return


class _Registry(dict[Any, Any]):
    """The warnings that a module has shown; `assertWarns` replaces only those that are true."""

    def __bool__(self) -> bool:
        return False


def watch_dictionaries() -> Callable[[], list[str]]:
    """Detect changes of a runner's central parts, including changes that were undone.

    CPython versions that count dictionary changes make this possible; others detect nothing.
    """
    if not _are_changes_numbered():
        return list
    counters: dict[str, ctypes.c_uint64] = {}
    for name, holders in _DECISIVE.items():
        module = sys.modules.get(name)
        for holder in holders:
            thing = getattr(module, holder, None) if holder else module
            inside = None if thing is None else _dictionary_of(thing)
            if isinstance(thing, ModuleType):
                # Otherwise the first warning would change the module.
                vars(thing)["__warningregistry__"] = _Registry()
            if inside is not None:
                counters[f"{name}.{holder}".rstrip(".")] = _counter(inside)
    before = {label: counter.value for label, counter in counters.items()}

    def touched() -> list[str]:
        return [label for label, counter in counters.items() if counter.value != before[label]]

    return touched


def _counter(inside: "dict[str, Any]") -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(inside) + _NUMBER_AT)


def _dictionary_of(thing: object) -> "dict[str, Any] | None":
    inside: Any = vars(thing)
    if not isinstance(inside, dict):
        # Classes expose their dictionary only through a proxy.
        inside = next(iter(gc.get_referents(inside)), None)
    return cast("dict[str, Any]", inside) if isinstance(inside, dict) else None


def _are_changes_numbered() -> bool:
    if sys.implementation.name != "cpython":
        return False
    trial: dict[str, Any] = {"a": 0}
    counter = _counter(trial)
    first = counter.value
    trial["a"] = 1
    second = counter.value
    return first != second == counter.value
