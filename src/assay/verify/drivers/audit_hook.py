"""Detect suspicious operations of workspace code by audit events, under any name.

The interpreter reports such operations before it performs them, and an audit hook cannot be
removed. Each one is reported immediately, so that later code cannot undo the report. Other events
show which changed files the tests execute, and which other file an import got instead.
"""

import os
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
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
        self.protected = tuple(os.path.realpath(name) for name in order["protected"])

    def own(self, name: str) -> str:
        """The path from the root of a workspace file that is not a protected test; else empty."""
        return "" if self.is_protected(name) else self.path(name)

    def path(self, name: str) -> str:
        """The path from the root of any file of the workspace; else empty."""
        path = self._whole(name)
        return path[len(self.root) :] if path.startswith(self.root) else ""

    def is_protected(self, name: str) -> bool:
        path = self._whole(name)
        return any(path == one or path.startswith(one + "/") for one in self.protected)

    def _whole(self, name: str) -> str:
        # Code from an archive has a path relative to the place where the archive was named.
        return name if name.startswith(("/", "<")) else self._folder + name

    def names_tests(self, name: Any) -> bool:
        path = os.fsdecode(name) if isinstance(name, str | bytes) else ""
        return path.endswith(".py") and self.is_protected(self._real(path))


def watch_acts(order: "dict[str, Any]", say: Say) -> None:
    """Report suspicious operations of workspace code from now on."""
    workspace = Workspace(order)
    frame_at, me = vars(sys)["_getframe"], get_ident
    busy: set[int] = set()
    told: set[tuple[str, str]] = set()

    def listen(event: str, given: "tuple[Any, ...]") -> None:
        if event not in _FINDERS and not event.startswith("ctypes."):
            return
        thread = me()
        if thread in busy:
            return
        busy.add(thread)
        try:
            find = _FINDERS.get(event, _foreign)
            path = find(workspace, given, frame_at(1))
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


_FINDERS: "dict[str, Callable[[Workspace, tuple[Any, ...], Any], str]]" = {
    **dict.fromkeys(_BY_ITSELF, _by_itself),
    "exec": _code,
    "sys._getframe": _frame,
    "object.__getattr__": _attribute,
    "object.__setattr__": _attribute,
    "pickle.find_class": _unpickled,
    "open": _opened,
}


_CHILD_PROCESS = frozenset(
    {
        *("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty"),
        *("os.system", "os.spawn", "pty.spawn"),
    }
)
# These start processes without an audit event, and are imported only to start one.
_STARTERS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
_SOURCE_FOLDER = "src"


def project_path(order: "dict[str, Any]") -> "list[str]":
    """Return the first import paths, so that verified files take precedence over installed ones.

    These are `src` of a src layout, the working folder, and the PYTHONPATH of the command. Programs
    that the tests start find `src` through that variable.
    """
    here = Path.cwd()
    sources = list(_source_folders(here, order))
    if sources:
        given = os.environ.get("PYTHONPATH")  # noqa: TID251 - for programs, not a setting
        os.environ["PYTHONPATH"] = os.pathsep.join([*sources, *filter(None, [given])])  # noqa: TID251 - as above
    return [*sources, str(here), *filter(None, order["path"].split(os.pathsep))]


def _source_folders(here: Path, order: "dict[str, Any]") -> "Iterator[str]":
    """Return `src` next to the listed tests or above them, the nearest first."""
    root = Path(os.path.normpath(here / order["root"]))
    folders = {here: None}
    for word in order["args"]:
        path = Path(os.path.normpath(here / word.partition("::")[0]))
        if not word.startswith("-") and path.exists():
            folders |= dict.fromkeys((path, *path.parents))
    folders |= dict.fromkeys(here.parents)
    # In a workspace with several projects, the other projects come last.
    for name in order["protected"]:
        folders |= dict.fromkeys(Path(os.path.normpath(here / name)).parents)
    for depth in ("*", "*/*"):
        folders |= dict.fromkeys(
            source.parent for source in sorted(root.glob(f"{depth}/{_SOURCE_FOLDER}"))
        )
    for folder in folders:
        source = folder / _SOURCE_FOLDER
        inside = folder == root or root in folder.parents
        if inside and source.is_dir() and not (source / "__init__.py").exists():
            yield str(source)


class ExecutedFiles:
    """Report each changed file when its code starts, in this process or in another program."""

    def __init__(self, order: "dict[str, Any]", say: Say) -> None:
        self._say = say
        self._workspace = Workspace(order)
        self._normal = os.path.normpath
        self._changed = frozenset(order["changed"])
        self._waiting: set[str] = set(order["changed"])
        self._removed: set[str] = set(order["removed"])
        self._has_children = False
        if self._waiting or self._removed:
            sys.addaudithook(self._listen)

    def report_others(self) -> None:
        """Report modules that have the name of a changed file but come from another place."""
        if any(name in sys.modules for name in _STARTERS):
            self._note_child()
        root = Path(self._workspace.root)
        for path in sorted(self._changed | self._removed):
            was_run = path in self._changed - self._waiting
            for name in _own_names(path) if was_run else _module_names(path, root):
                file = getattr(sys.modules.get(name), "__file__", None)
                if isinstance(file, str) and not self._workspace.path(file):
                    self._say(["elsewhere", name, file, path])
                    break

    def _listen(self, event: str, given: "tuple[Any, ...]") -> None:
        if event == "exec":
            self._note(getattr(given[0], "co_filename", ""))
        elif event in _CHILD_PROCESS:
            self._note_child()
            for name in _started_files(given):
                self._note(name)

    def _note_child(self) -> None:
        if not self._has_children:
            self._has_children = True
            self._say(["child"])

    def _note(self, name: object) -> None:
        path = self._workspace.path(self._normal(name)) if isinstance(name, str) else ""
        if path in self._waiting:
            self._waiting.discard(path)
            self._say(["ran", path])


def _own_names(path: str) -> "Iterator[str]":
    """Return the names by which an executed file can be imported from the root or `src`."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    starts = [0, *(at + 1 for at, part in enumerate(parts) if part == _SOURCE_FOLDER)]
    yield from (".".join(parts[start:]) for start in starts)


def _module_names(path: str, root: Path) -> "Iterator[str]":
    """Return the names by which a file, or its package, can be imported."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    for first, top in enumerate(parts):
        inside_package = (root.joinpath(*parts[:first]) / "__init__.py").exists()
        if not inside_package and top not in sys.stdlib_module_names:
            yield from (".".join(parts[first:]), top)


def _started_files(given: "tuple[Any, ...]") -> "Iterator[str]":
    """Return the files that a command line names, including modules after `-m`."""
    before = ""
    for word in (word for part in given if type(part) in {list, tuple} for word in part):
        text = str(word)
        if before == "-m":
            module = text.replace(".", "/")
            for folder in ("", f"{_SOURCE_FOLDER}/"):
                yield f"{folder}{module}.py"
                yield f"{folder}{module}/__main__.py"
        yield text
        before = text


_COMMAND_CHARS = 120
_OWN_HELPERS = ("resource_tracker", "forkserver")  # of multiprocessing; they end with the process


class TestProcesses:
    """Record the programs that the tests themselves start, such as a server in a fixture."""

    def __init__(self, order: "dict[str, Any]") -> None:
        self._workspace = Workspace(order)
        self._frame_at = vars(sys)["_getframe"]
        self._commands: set[str] = set()
        sys.addaudithook(self._listen)

    def has_started(self, command: str) -> bool:
        return any(command.endswith(own) for own in self._commands)

    def _listen(self, event: str, given: "tuple[Any, ...]") -> None:
        if event != "subprocess.Popen":
            return
        frame = self._frame_at(1)
        for _ in range(_LONGEST_STACK):
            if frame is None or frame.f_code.co_filename.startswith(self._workspace.root):
                break
            frame = frame.f_back
        if frame is not None and self._workspace.is_protected(frame.f_code.co_filename):
            words = given[1] if type(given[1]) in {list, tuple} else [given[1]]
            self._commands.add(" ".join(map(str, words))[:_COMMAND_CHARS].strip())


def living_processes(tests: TestProcesses) -> "list[str]":
    """Return the command lines of child and orphaned processes that the tests did not start."""
    family = {os.getpid(), os.getppid()}
    found: list[str] = []
    try:
        entries = list(Path("/proc").iterdir())
    except OSError:  # a sandbox may hide its processes
        return []
    for entry in entries:
        if not entry.name.isdigit() or int(entry.name) in family:
            continue
        try:
            status = (entry / "stat").read_text(errors="replace")
            state, parent = status.rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
        except OSError:
            continue
        if int(parent) in family and state != "Z" and not any(w in command for w in _OWN_HELPERS):
            found.append(command[:_COMMAND_CHARS])
    return sorted(command for command in found if not tests.has_started(command))
