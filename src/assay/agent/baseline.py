"""Detect problems that no change of files can fix, from the checks on the original files.

Examples are missing programs and packages. Workspaces exclude `node_modules`, so npm packages
come from a folder that the setting `sandbox.read_only` mounts; the hint names it.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.agent.python_trouble import Trouble, trouble_at_start, trouble_of_test
from assay.contracts.verdict import CheckReport, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.missing_modules import MODULE, is_named
from assay.verify.report_checks import HANGS

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


_PROGRAM: Final = re.compile(
    r"the program '([^'/]+)' is not in the sandbox"
    r"|(?:^|: )([\w.+-]+): (?:command )?not found$"
    r"|^make(?:\[\d+\])?: ([\w.+-]+): No such file or directory$",
    re.MULTILINE,
)
_FILE: Final = re.compile(r"No such file or directory: b?['\"]([^'\"\n]+)['\"]")
_ROOTS: Final = (PurePosixPath(), PurePosixPath("src"), PurePosixPath("lib"))
_NETWORK: Final = re.compile(
    r"kept from the network: ([\w.*-]+)"
    r"|host='([\w.-]+)', port=\d+\)?: Max retries exceeded"
    r"|gaierror: \[Errno -\d+\]|getaddrinfo (?:EAI_AGAIN|ENOTFOUND) ?([\w.-]*)"
    r"|Temporary failure in name resolution|\[Errno 101\] Network is unreachable",
)
_FAILING: Final = frozenset({TestStatus.FAILED, TestStatus.ERROR})


def hanging(reports: Iterable[CheckReport]) -> tuple[CheckReport, ...]:
    """Return the checks that hung."""
    return tuple(report for report in reports if report.explanation in HANGS)


def trouble_in(
    reports: Iterable[CheckReport],
    tree: Tree,
    statement: str,
    *,
    workspace: str = "",
    given: bool = True,
) -> Trouble | None:
    """Return why no change of files can make a check pass; None if missing work may be the cause.

    A name from the goal counts as missing work. `workspace` is the host folder, for hints.
    `given` says whether the user gave the checks, so that they must find tests.
    """
    for report in reports:
        if report.passed:
            continue
        found = (
            _missing_from_npm(report, tree, statement, workspace)
            or _missing_program(report, tree, statement)
            or _withheld_file(report, tree, statement)
            or trouble_at_start(report, tree, statement, given=given)
            or _unfixable_tests(report, tree, statement)
            or _refused_network(report)
        )
        if found:
            return found
    return None


def _texts(report: CheckReport) -> list[str]:
    failing = [test for test in report.tests if test.status in _FAILING]
    if failing:
        return [f"{test.message}\n{test.detail}" for test in failing]
    return [f"{report.explanation}\n{report.output}"]


def _missing_from_npm(
    report: CheckReport, tree: Tree, statement: str, workspace: str
) -> Trouble | None:
    found: MissingPackage | None = None
    if program := _program_in(report, tree, statement):
        found = missing_program(program, tree)
    found = found or missing_package(report, _texts(report), tree)
    if found is None or is_named(found.name, statement):
        return None
    return Trouble(
        message=f"the check `{report.command}` cannot pass here: the sandbox does not have the npm "
        f"package {found.name!r}; {found.folder} is left out of every workspace",
        hint=found.hint(workspace),
    )


def _missing_program(report: CheckReport, tree: Tree, statement: str) -> Trouble | None:
    name = _program_in(report, tree, statement)
    if not name:
        return None
    return Trouble(
        message=f"the check `{report.command}` cannot start: the program {name!r} is not in the "
        "sandbox",
        hint=f"install {name}, or give another command with --check",
    )


def _withheld_file(report: CheckReport, tree: Tree, statement: str) -> Trouble | None:
    """Find a file or module of the workspace that was withheld from the sandbox."""
    for name in (name for text in _texts(report) for name in _names_of_missing(text)):
        withheld = next((one for one in tree.withheld if one.covers(name)), None)
        if withheld is not None and not is_named(withheld.path.name, statement):
            return Trouble(
                message=f"the check `{report.command}` cannot pass here: it needs {str(name)!r}, "
                f"which was withheld ({withheld.why})",
                hint=f"add --include '{name if withheld.folder else withheld.path}'",
            )
    return None


def _names_of_missing(text: str) -> Iterable[PurePosixPath]:
    """Yield the possible workspace paths of the missing files and modules in a message."""
    for found in _FILE.finditer(text):
        path = PurePosixPath(found[1])
        yield path
        if path.is_absolute():
            yield from (PurePosixPath(*path.parts[start:]) for start in range(1, len(path.parts)))
    for name in MODULE.findall(text):
        module = PurePosixPath(*name.split("."))
        for root in _ROOTS:
            yield from (root / module.with_suffix(".py"), root / module)


def _program_in(report: CheckReport, tree: Tree, statement: str) -> str:
    """Return the program that a check could not start, unless the goal asks for it."""
    found = None
    if not report.tests:
        found = _PROGRAM.search(f"{report.explanation}\n{report.output}")
    name = next(filter(None, found.groups()), "") if found else ""
    return "" if is_named(name, statement) or _is_file(name, tree) else name


def _unfixable_tests(report: CheckReport, tree: Tree, statement: str) -> Trouble | None:
    """Return why no failing test can pass; None if one may fail because of missing work."""
    found = [trouble_of_test(report, text, tree, statement) for text in _texts(report)]
    troubles = [trouble for trouble in found if trouble is not None]
    if not troubles or len(troubles) < len(found):
        return None
    hints = dict.fromkeys(trouble.hint for trouble in troubles)
    packages = [hint.removeprefix("add ") for hint in hints if hint.startswith("add --package")]
    if len(packages) == len(hints):
        return replace(troubles[0], hint=f"add {' '.join(packages)}")
    return troubles[0]


def failing_before(
    reports: Iterable[CheckReport], tree: Tree, statement: str
) -> Iterator[tuple[str, Trouble]]:
    """Yield the tests that can never pass here, next to others that may."""
    for report in reports:
        for test in report.tests:
            if test.status in _FAILING:
                text = f"{test.message}\n{test.detail}"
                trouble = trouble_of_test(report, text, tree, statement)
                if trouble is not None:
                    yield test.id, trouble


def _refused_network(report: CheckReport) -> Trouble | None:
    found = [_NETWORK.search(text) for text in _texts(report)]
    # A test that fails for another reason may be what the goal is about.
    if not all(found):
        return None
    hosts = dict.fromkeys(name for match in found if match for name in match.groups() if name)
    options = " ".join(f"--allow-host {host}" for host in hosts) or "--allow-host HOST"
    where = f" to {', '.join(hosts)}" if hosts else ""
    return Trouble(
        message=f"the check `{report.command}` cannot pass here: the sandbox refuses connections"
        f"{where}",
        hint=f"add {options}",
    )


def _is_file(name: str, tree: Tree) -> bool:
    return any(path.name == name for path in tree.files)
