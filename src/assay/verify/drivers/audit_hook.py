"""Detect suspicious operations of workspace code by audit events, under any name.

The interpreter reports such operations before it performs them, and an audit hook cannot be
removed. Each one is reported immediately, so that later code cannot undo the report.
"""

import os
import sys
from _thread import get_ident
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.verify.drivers.channel import Say

_BY_ITSELF = frozenset(
    {
        *("exec", "compile", "marshal.loads", "marshal.load", "code.__new__", "function.__new__"),
        *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
        *("sys._getframe", "sys._current_frames", "sys._current_exceptions"),
        *("sys.settrace", "sys.setprofile", "sys.addaudithook"),
    }
)
_ATTRIBUTES = frozenset(
    {
        *("__code__", "__defaults__", "__kwdefaults__"),
        *("tb_frame", "gi_frame", "cr_frame", "ag_frame", "f_code"),
    }
)
# Library functions that return a frame to their caller.
_GIVE_FRAMES = frozenset({"currentframe", "stack", "walk_stack", "<lambda>"})
_DANGEROUS = frozenset(
    {"builtins", "os", "posix", "sys", "subprocess", "importlib", "operator", "functools", "types"}
)
_HARMLESS = frozenset({"set", "frozenset", "complex", "bytearray", "slice", "range", "object"})
_OWN_PROCESS = ("mem", "maps", "fd", "environ", "cmdline", "stack", "auxv", "task", "smaps")
_LONGEST_STACK = 400


class Workspace:
    """Identify files of the workspace and protected files by their paths."""

    def __init__(self, order: "dict[str, Any]") -> None:
        self._real, self._folder = os.path.realpath, os.path.realpath(".") + "/"
        self.root = os.path.realpath(order["root"]) + "/"
        self.judging = tuple(os.path.realpath(name) for name in order["protected"])

    def own(self, name: str) -> str:
        """The path from the root of a workspace file that is not a protected test; else empty."""
        return "" if self.judges(name) else self.path(name)

    def path(self, name: str) -> str:
        """The path from the root of any file of the workspace; else empty."""
        path = self._whole(name)
        return path[len(self.root) :] if path.startswith(self.root) else ""

    def judges(self, name: str) -> bool:
        path = self._whole(name)
        return any(path == one or path.startswith(one + "/") for one in self.judging)

    def _whole(self, name: str) -> str:
        # Code from an archive has a path relative to the place where the archive was named.
        return name if name.startswith(("/", "<")) else self._folder + name

    def names_tests(self, name: Any) -> bool:
        path = os.fsdecode(name) if isinstance(name, str | bytes) else ""
        return path.endswith(".py") and self.judges(self._real(path))


def watch_acts(order: "dict[str, Any]", say: Say) -> None:
    """Report suspicious operations of workspace code from now on."""
    workspace = Workspace(order)
    frame_at, me = vars(sys)["_getframe"], get_ident
    busy: set[int] = set()
    told: set[tuple[str, str]] = set()

    def listen(event: str, given: "tuple[Any, ...]") -> None:
        if event not in _JUDGES and not event.startswith("ctypes."):
            return
        thread = me()
        if thread in busy:
            return
        busy.add(thread)
        try:
            judge = _JUDGES.get(event, _foreign)
            path = judge(workspace, given, frame_at(1))
            name = given[1] if event.startswith("object.") else event
            if path and (name, path) not in told:
                told.add((name, path))
                say(["seen", name, path])
        finally:
            busy.discard(thread)

    sys.addaudithook(listen)


def new_finders(workspace: Workspace) -> "list[str]":
    """Workspace files that now provide import finders."""
    found: set[str] = set()
    for finder in (*sys.meta_path, *sys.path_hooks):
        kind = finder if hasattr(finder, "__name__") else type(finder)
        module = sys.modules.get(str(getattr(kind, "__module__", "")))
        found.add(workspace.own(str(getattr(module, "__file__", ""))))
    return sorted(found - {""})


def _by_itself(workspace: Workspace, given: "tuple[Any, ...]", frame: Any) -> str:
    del given
    return workspace.own(frame.f_code.co_filename)


def _code(workspace: Workspace, given: "tuple[Any, ...]", frame: Any) -> str:
    """Code that was compiled from text, or from a file without a `.py` suffix."""
    source = getattr(given[0], "co_filename", "") if given else ""
    if isinstance(source, str) and not (source.endswith(".py") and Path(source).is_file()):
        return workspace.own(source) or _by_itself(workspace, given, frame)
    return _by_itself(workspace, given, frame)


def _foreign(workspace: Workspace, given: "tuple[Any, ...]", frame: Any) -> str:
    """Access to memory and foreign functions, through `ctypes` or without it."""
    while frame is not None and "/ctypes/" in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else _by_itself(workspace, given, frame)


def _frame(workspace: Workspace, given: "tuple[Any, ...]", frame: Any) -> str:
    path = _by_itself(workspace, given, frame)
    if not path and frame.f_back is not None and frame.f_code.co_name in _GIVE_FRAMES:
        return _by_itself(workspace, given, frame.f_back)
    return path


def _attribute(workspace: Workspace, given: "tuple[Any, ...]", frame: Any) -> str:
    return _by_itself(workspace, given, frame) if given[1] in _ATTRIBUTES else ""


def _unpickled(workspace: Workspace, given: "tuple[Any, ...]", frame: Any) -> str:
    module, name = str(given[0]), str(given[1])
    if module.partition(".")[0] not in _DANGEROUS or name in _HARMLESS:
        return ""
    return _nearest(workspace, frame)


def _opened(workspace: Workspace, given: "tuple[Any, ...]", frame: Any) -> str:
    name = given[0]
    text = os.fsdecode(name) if isinstance(name, str | bytes) else ""
    inside = text.startswith("/proc/") and text.rstrip("/").split("/")[3:4]
    if (inside and inside[0] in _OWN_PROCESS) or workspace.names_tests(name):
        return _nearest(workspace, frame)
    return ""


def _nearest(workspace: Workspace, frame: Any) -> str:
    """The workspace file that caused a library to act."""
    for _ in range(_LONGEST_STACK):
        if frame is None:
            return ""
        name = frame.f_code.co_filename
        # The warnings module opens a file to quote the line that a warning is about.
        if name.startswith(workspace.root) or name.endswith("/warnings.py"):
            return workspace.own(name)
        frame = frame.f_back
    return ""


_JUDGES: "dict[str, Callable[[Workspace, tuple[Any, ...], Any], str]]" = {
    **dict.fromkeys(_BY_ITSELF, _by_itself),
    "exec": _code,
    "sys._getframe": _frame,
    "object.__getattr__": _attribute,
    "object.__setattr__": _attribute,
    "pickle.find_class": _unpickled,
    "open": _opened,
}
