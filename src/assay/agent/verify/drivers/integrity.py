"""Notices that the test runner was changed in memory: functions and classes that are others now."""

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType

_PACKAGES = ("_pytest", "pluggy", "pytest", "unittest", "builtins", "iniconfig")
# Tests replace these with good reason, and no verdict hangs on them.
_LEFT_ALONE = frozenset({"builtins.input", "builtins.print", "builtins.open", "builtins._"})
_KINDS = (FunctionType, type, type(len), staticmethod, classmethod, property)

Entry = tuple[object, str, object, object, str]
"""Who holds it, its name there, what it was, its code, and how to call it."""


def watch_runner() -> Callable[[], list[str]]:
    """Remember the runner as it is; the function says what is different when it is called."""
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
