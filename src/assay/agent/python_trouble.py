"""Problems of pytest and unittest that no change of the project's files fixes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.verdict import CheckReport
from assay.contracts.workspace import Tree
from assay.verify.discovery import find_tests
from assay.verify.missing_modules import (
    distribution_of,
    is_named,
    is_third_party,
    missing_modules,
)

_UNKNOWN_OPTION: Final = re.compile(r"error: unrecognized arguments: (.+)")
_MISSING_PLUGIN: Final = re.compile(
    r"Missing required plugins: ([\w.,<>=! -]+)|Error importing plugin \"([\w.]+)\""
)
_MISSING_FIXTURE: Final = re.compile(r"fixture '(\w+)' not found")
_ASYNC: Final = re.compile(r"async def functions are not natively supported")
_UNKNOWN_TEST: Final = re.compile(r"ERROR: not found: (\S+::\S+)")
_SYNTAX: Final = re.compile(
    r"File \"([^\"\n]+)\", line (\d+)(?:\n.*){0,4}?\n\s*(?:Syntax|Indentation|Tab)Error"
    r"|(?:Syntax|Indentation|Tab)Error: .*\(([^()\s]+\.py), line (\d+)\)"
)
_WRITES_TESTS: Final = re.compile(r"\b(?:write|add|create)\b[^.\n]*\btests?\b", re.IGNORECASE)
_NO_TESTS: Final = "it found no tests"
# By the beginning of an option: the package with the plugin that knows it.
_OPTIONS: Final = {
    "--cov": "pytest-cov", "--no-cov": "pytest-cov", "--timeout": "pytest-timeout",
    "-n": "pytest-xdist", "--numprocesses": "pytest-xdist", "--dist": "pytest-xdist",
    "--asyncio-mode": "pytest-asyncio", "--benchmark": "pytest-benchmark",
    "--reruns": "pytest-rerunfailures", "--html": "pytest-html", "--ds": "pytest-django",
    "--mypy": "pytest-mypy", "--random-order": "pytest-random-order",
    "--snapshot-": "syrupy", "--count": "pytest-repeat", "--black": "pytest-black",
}  # fmt: skip
_FIXTURES: Final = {
    "aiohttp_client": "pytest-aiohttp", "benchmark": "pytest-benchmark",
    "data_regression": "pytest-regressions", "datadir": "pytest-datadir",
    "db": "pytest-django", "event_loop": "pytest-asyncio", "faker": "Faker",
    "file_regression": "pytest-regressions", "freezer": "pytest-freezer", "fs": "pyfakefs",
    "httpserver": "pytest-httpserver", "httpx_mock": "pytest-httpx", "mocker": "pytest-mock",
    "requests_mock": "requests-mock", "respx_mock": "respx", "snapshot": "syrupy",
    "subtests": "pytest-subtests", "testdir": "", "pytester": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The reason that a check can never pass here."""

    message: str
    hint: str


def trouble_at_start(report: CheckReport, tree: Tree, goal: str, *, given: bool) -> Trouble | None:
    """Return why pytest or unittest could not run any test, unless the goal may change that."""
    if report.tests or report.runner not in {"pytest", "unittest"}:
        return None
    text = f"{report.explanation}\n{report.output}"
    if found := _UNKNOWN_OPTION.search(text):
        words = [word for word in found[1].split() if word.startswith("-")] or [found[1].strip()]
        packages = dict.fromkeys(
            package for word in words for name, package in _OPTIONS.items() if word.startswith(name)
        )
        return Trouble(
            message=f"the check `{report.command}` cannot start: pytest does not know the option "
            f"{' '.join(words)!r}",
            hint=f"{_packages(packages)}remove the option from the command or configuration",
        )
    if found := _MISSING_PLUGIN.search(text):
        names = [
            re.split(r"[<>=! ]", name.strip())[0] for name in (found[1] or found[2]).split(",")
        ]
        names = [name.replace("_", "-") for name in names if name]
        return Trouble(
            message=f"the check `{report.command}` cannot start: the sandbox does not have the "
            f"plugin {', '.join(names)}",
            hint=f"{_packages(dict.fromkeys(names))}remove the plugin from the configuration",
        )
    if (found := _UNKNOWN_TEST.search(text)) and not _WRITES_TESTS.search(goal):
        return Trouble(
            message=f"the check `{report.command}` cannot start: there is no test {found[1]}",
            hint="correct the node ID in --tests or --check",
        )
    exists = given and bool(find_tests(tree))
    if report.explanation == _NO_TESTS and exists and not _WRITES_TESTS.search(goal):
        return Trouble(
            message=f"the check `{report.command}` found no tests",
            hint="name the tests that decide with --tests, or another command with --check",
        )
    return None


def _packages(names: dict[str, None]) -> str:
    found = " ".join(f"--package {name}" for name in names if name)
    return f"add {found}, or " if found else ""


def trouble_of_test(report: CheckReport, text: str, tree: Tree, goal: str) -> Trouble | None:
    """Return why one failing test can never pass here, from its failure."""
    begins = f"the check `{report.command}` cannot pass here: "
    if modules := list(missing_modules(text)):
        names = [
            name for name in modules if is_third_party(name, tree) and not is_named(name, goal)
        ]
        if not names:
            return None
        package = distribution_of(names[0])
        return Trouble(
            message=f"{begins}the sandbox does not have the package {package!r} "
            f"(ModuleNotFoundError: No module named {names[0]!r})",
            hint=f"add --package {package}",
        )
    if (found := _MISSING_FIXTURE.search(text)) and (package := _FIXTURES.get(found[1], "")):
        return Trouble(
            message=f"{begins}the sandbox does not have the fixture {found[1]!r} of {package}",
            hint=f"add --package {package}",
        )
    if _ASYNC.search(text):
        return Trouble(
            message=f"{begins}no plugin runs the tests that are coroutines",
            hint="add --package pytest-asyncio, or the plugin that the project uses",
        )
    for path, line in _syntax_errors(text, tree):
        if not is_named(path.name, goal):
            return Trouble(
                message=f"{begins}{path} has a syntax error in line {line}",
                hint="correct the file, or name other tests with --tests",
            )
    return None


def _syntax_errors(text: str, tree: Tree) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield the test files with syntax errors; tests are protected, so the agent cannot act."""
    tests = find_tests(tree)
    plain = re.sub(r"^E  ?", "", text, flags=re.MULTILINE)
    for found in _SYNTAX.finditer(plain):
        name, line = found[1] or found[3], found[2] or found[4]
        written = PurePosixPath(name)
        for path in tests:
            if written.parts[-len(path.parts) :] == path.parts or written == PurePosixPath(
                path.name
            ):
                yield path, line
