"""Detect runner changes through the process memory, and restrict access to that memory."""

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any, cast

_SET_DUMPABLE = 4
_NUMBER_AT = 24
"""The offset at which CPython stores the version of a dictionary."""
# By module: the classes whose methods decide a result; empty for the module itself.
_HEARTS: "dict[str, tuple[str, ...]]" = {
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


def watch_hearts() -> Callable[[], list[str]]:
    """Detect changes of a runner's central parts, including changes that were undone.

    CPython versions that count dictionary changes make this possible; others detect nothing.
    """
    if not _are_changes_numbered():
        return list
    counters: dict[str, ctypes.c_uint64] = {}
    for name, holders in _HEARTS.items():
        module = sys.modules.get(name)
        for holder in holders:
            thing = getattr(module, holder, None) if holder else module
            inside = None if thing is None else _dictionary_of(thing)
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
