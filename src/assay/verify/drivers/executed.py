"""Report which changed files the tests execute, and which other file an import got instead."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.verify.drivers.audit_hook import Workspace
from assay.verify.drivers.channel import Say

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
    places = {here: None}
    for word in order["args"]:
        path = Path(os.path.normpath(here / word.partition("::")[0]))
        if not word.startswith("-") and path.exists():
            places |= dict.fromkeys((path, *path.parents))
    places |= dict.fromkeys(here.parents)
    # In a workspace with several projects, the other projects come last.
    for name in order["protected"]:
        places |= dict.fromkeys(Path(os.path.normpath(here / name)).parents)
    for depth in ("*", "*/*"):
        places |= dict.fromkeys(
            source.parent for source in sorted(root.glob(f"{depth}/{_SOURCE_FOLDER}"))
        )
    for place in places:
        source = place / _SOURCE_FOLDER
        inside = place == root or root in place.parents
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
