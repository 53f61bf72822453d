"""Find reusable functions in accepted files: those that need no other file. Pure."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.agent.snippets.extract import Module, imports_of, read_module
from assay.agent.target_files import module_file
from assay.contracts.lessons import Snippet
from assay.contracts.workspace import Tree, changes_between

_ANYWHERE: Final = sys.stdlib_module_names | {"matplotlib", "numpy", "pandas", "scipy", "sklearn"}
"""Packages that every sandbox has."""
_FOR_TESTS: Final = frozenset({"pytest"})
_MAX_CHARS: Final = 4_000
"""The maximum for the code: more is a program, not a snippet."""


@dataclass(frozen=True, slots=True)
class _File:
    path: PurePosixPath
    module: Module


def skills_in(before: Tree, after: Tree, tests: tuple[PurePosixPath, ...]) -> Iterator[Snippet]:
    """Yield the snippets of changed Python files, each with its own tests.

    Names that are tested together stay together. Code is excluded if it or its test needs another
    project file, or a library that sandboxes do not have.
    """
    changed = [one.path for one in changes_between(before, after) if one.kind != "deleted"]
    for file in _python_files((path for path in changed if path not in tests), after):
        for test in _python_files(iter(tests), after):
            yield from _skills_of(file, test, after)


def _python_files(paths: Iterator[PurePosixPath], tree: Tree) -> Iterator[_File]:
    for path in paths:
        text = tree.text(path) if path.suffix == ".py" else None
        module = None if text is None else read_module(text)
        if module is not None:
            yield _File(path, module)


def _skills_of(file: _File, test: _File, tree: Tree) -> Iterator[Snippet]:
    def is_ours(dotted: str) -> bool:
        return module_file(dotted, test.path, tree) == file.path

    uses = {name: test.module.taken_from(name, is_ours) for name in test.module.tests}
    for group in _joined(list(uses.values())):
        own = [name for name, used in uses.items() if used and used <= group]
        source, check = file.module.cut(group), test.module.cut(own)
        needed = {dotted for dotted in imports_of(check) if not is_ours(dotted)}
        if (
            group <= file.module.binders.keys()
            and len(source) <= _MAX_CHARS
            and _tops(imports_of(source)) <= _ANYWHERE
            and _tops(needed) <= _ANYWHERE | _FOR_TESTS
        ):
            names = tuple(name for name in file.module.binders if name in group)
            yield Snippet(
                names=names,
                purpose="",
                path=file.path,
                source=source,
                test_path=test.path,
                test=check,
            )


def _joined(sets: list[frozenset[str]]) -> list[frozenset[str]]:
    """Merge sets that overlap until all are disjoint."""
    groups: list[frozenset[str]] = []
    for one in filter(None, sets):
        touching = [group for group in groups if group & one]
        groups = [group for group in groups if not group & one]
        groups.append(one.union(*touching))
    return groups


def _tops(dotted: frozenset[str] | set[str]) -> set[str]:
    return {name.partition(".")[0] or "." for name in dotted}
