"""Find the npm package that a check lacks, and the option that provides it.

Workspaces exclude `node_modules`, so npm packages come from a folder that the setting
`sandbox.read_only` mounts.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.verdict import CheckReport, TestStatus
from assay.contracts.workspace import Tree

_FOLDER: Final = "node_modules"
_MANIFEST: Final = "package.json"
_DEPENDENCIES: Final = (
    "dependencies",
    "devDependencies",
    "optionalDependencies",
    "peerDependencies",
)
_NAME: Final = r"((?:@[\w.~-]+/)?[\w~-][\w.~-]*)(?:/[^'\"\s]*)?"
# Relative and absolute paths are project files, and `#name` is a project alias.
_REQUIRED: Final = re.compile(rf"Cannot find module ['\"]{_NAME}['\"]")
_IMPORTED: Final = re.compile(rf"Cannot find package ['\"]{_NAME}['\"]")
_JEST: Final = "jest is not in the sandbox"
_BY_NODE: Final = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPackage:
    """An npm package that the sandbox does not have."""

    name: str
    folder: PurePosixPath
    """The folder of the project's packages, from the workspace root."""
    imported: bool
    """Whether it is needed by `import` or as a program: NODE_PATH does not help then."""

    def hint(self, workspace: str) -> str:
        """Return the setting to change so that the check finds the package."""
        place = PurePosixPath(workspace or "/PROJECT") / self.folder
        link = f"ln -sfn {place} {self.folder} &&"
        begins = f"`{link}`" if self.imported else f"`NODE_PATH={place}`"
        return (
            f"run `npm install` in the project, set ASSAY_SANDBOX__READ_ONLY={place}, "
            f"and let the command of --check begin with {begins}"
        )


def missing_package(report: CheckReport, texts: list[str], tree: Tree) -> MissingPackage | None:
    """Return the npm package that a check lacks and that no change of files can provide."""
    if report.explanation.startswith(_JEST):
        return MissingPackage(name="jest", folder=_folder_for("jest", tree), imported=False)
    if any(test.status is TestStatus.ERROR for test in report.tests):
        # Node prints the reason for a failed file only to its output.
        texts = [*texts, report.output]
    for text in texts:
        for pattern in (_IMPORTED, _REQUIRED):
            for found in pattern.finditer(text):
                if _comes_from_npm(found[1], report, tree):
                    return MissingPackage(
                        name=found[1],
                        folder=_folder_for(found[1], tree),
                        imported=pattern is _IMPORTED,
                    )
    return None


def missing_program(name: str, tree: Tree) -> MissingPackage | None:
    """Return the package of a program, if the project declares one of its name."""
    if not any(name in packages for _, packages in _declared(tree)):
        return None
    return MissingPackage(name=name, folder=_folder_for(name, tree), imported=True)


def _comes_from_npm(name: str, report: CheckReport, tree: Tree) -> bool:
    if any(own == name for own in _own_names(tree)):
        return False
    if any(name in packages for _, packages in _declared(tree)):
        return True
    # Other runners and NODE_PATH may search the project's files for this name.
    may_be_a_file = any(name in (path.stem, *path.parts[:-1]) for path in tree.files)
    return report.runner == _BY_NODE and "NODE_PATH" not in report.command and not may_be_a_file


def _folder_for(name: str, tree: Tree) -> PurePosixPath:
    declaring = [path.parent for path, packages in _declared(tree) if name in packages]
    return min(declaring, key=lambda path: len(path.parts), default=PurePosixPath()) / _FOLDER


def _declared(tree: Tree) -> Iterator[tuple[PurePosixPath, frozenset[str]]]:
    for path, fields in _manifests(tree):
        parts = [fields.get(key) for key in _DEPENDENCIES]
        names = [name for part in parts if isinstance(part, dict) for name in cast("Any", part)]
        yield path, frozenset(map(str, names))


def _own_names(tree: Tree) -> Iterator[object]:
    return (fields.get("name") for _, fields in _manifests(tree))


def _manifests(tree: Tree) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    for path in sorted(tree.files):
        if path.name != _MANIFEST:
            continue
        try:
            fields: Any = json.loads(tree.text(path) or "{}")
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict):
            yield path, cast("dict[str, Any]", fields)
