"""Run the checks on the original files, to detect problems that no change of files can fix.

Such problems are a missing program, a missing package or a refused connection. They are found
before the first call to a model, so the user does not pay for them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.agent import npm_packages
from assay.agent.npm_packages import MissingPackage
from assay.contracts.verdict import CheckReport, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.report_checks import HANGS

_PROGRAM: Final = re.compile(
    r"the program '([^'/]+)' is not in the sandbox"
    r"|(?:^|: )([\w.+-]+): (?:command )?not found$"
    r"|^make(?:\[\d+\])?: ([\w.+-]+): No such file or directory$",
    re.MULTILINE,
)
_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_FILE: Final = re.compile(r"No such file or directory: b?['\"]([^'\"\n]+)['\"]")
_ROOTS: Final = (PurePosixPath(), PurePosixPath("src"), PurePosixPath("lib"))
_NETWORK: Final = re.compile(
    r"kept from the network: ([\w.*-]+)"
    r"|host='([\w.-]+)', port=\d+\)?: Max retries exceeded"
    r"|gaierror: \[Errno -\d+\]|getaddrinfo (?:EAI_AGAIN|ENOTFOUND) ?([\w.-]*)"
    r"|Temporary failure in name resolution|\[Errno 101\] Network is unreachable",
)
_FAILING: Final = frozenset({TestStatus.FAILED, TestStatus.ERROR})
_DECLARATIONS: Final = re.compile(
    r"pyproject\.toml|setup\.(?:py|cfg)|tox\.ini|Pipfile|environment\.ya?ml|.*requirements.*\.(?:txt|in)"
)
_DISTRIBUTIONS: Final = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "jwt": "PyJWT",
    "PIL": "pillow",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
# Names that no project uses for its own modules.
_NAMES: Final = """
aiohttp anyio arrow attr attrs babel boto3 click cryptography cython django
docutils faker fastapi flask freezegun greenlet grpc httpx hypothesis isodate
jinja2 jsonschema lxml markupsafe matplotlib mock msgpack mypy nose numba numpy
orjson packaging pandas paramiko parameterized peewee pendulum polars psutil
psycopg2 pyarrow pydantic pygments pymongo pyparsing pytest_asyncio
pytest_benchmark pytest_mock pytz redis regex requests requests_mock responses
respx rich scipy seaborn setuptools simplejson six sqlalchemy starlette structlog
sympy tabulate termcolor testfixtures toml tomlkit torch tornado tqdm trio trustme
twisted typeguard typer typing_extensions ujson urllib3 uvicorn werkzeug xmltodict
yarl zstandard
"""
_WELL_KNOWN: Final = frozenset(_NAMES.split()) | frozenset(_DISTRIBUTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The reason that a check can never pass here."""

    message: str
    hint: str


def hanging(reports: Iterable[CheckReport]) -> tuple[CheckReport, ...]:
    """Return the checks that hung."""
    return tuple(report for report in reports if report.explanation in HANGS)


def trouble_in(
    reports: Iterable[CheckReport], tree: Tree, statement: str, *, workspace: str = ""
) -> Trouble | None:
    """Return why no change of files can make a check pass; None if missing work may be the cause.

    A name from the goal counts as missing work. `workspace` is the host folder, for hints.
    """
    for report in reports:
        if report.passed:
            continue
        found = (
            _missing_from_npm(report, tree, statement, workspace)
            or _missing_program(report, tree, statement)
            or _withheld_file(report, tree, statement)
            or _missing_package(report, tree, statement)
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
        found = npm_packages.missing_program(program, tree)
    found = found or npm_packages.missing_package(report, _texts(report), tree)
    if found is None or _is_named(found.name, statement):
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
        if withheld is not None and not _is_named(withheld.path.name, statement):
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
    for found in _MODULE.finditer(text):
        module = PurePosixPath(*found[1].split("."))
        for root in _ROOTS:
            yield from (root / module.with_suffix(".py"), root / module)


def _program_in(report: CheckReport, tree: Tree, statement: str) -> str:
    """Return the program that a check could not start, unless the goal asks for it."""
    found = None
    if not report.tests:
        found = _PROGRAM.search(f"{report.explanation}\n{report.output}")
    name = next(filter(None, found.groups()), "") if found else ""
    return "" if _is_named(name, statement) or _is_file(name, tree) else name


def _missing_package(report: CheckReport, tree: Tree, statement: str) -> Trouble | None:
    for text in _texts(report):
        for found in _MODULE.finditer(text):
            name = found[1].partition(".")[0]
            if _is_of_the_project(name, tree) or _is_named(name, statement):
                continue
            if name not in _WELL_KNOWN and not _is_declared(name, tree):
                continue
            package = _DISTRIBUTIONS.get(name, name)
            return Trouble(
                message=f"the check `{report.command}` cannot pass here: the sandbox does not have "
                f"the package {package!r} ({found[0]})",
                hint=f"add --package {package}",
            )
    return None


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


def _is_named(name: str, statement: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", statement, re.IGNORECASE) is not None


def _is_file(name: str, tree: Tree) -> bool:
    return any(path.name == name for path in tree.files)


def _is_of_the_project(name: str, tree: Tree) -> bool:
    """Whether the workspace has a module or package of this name, or has this name itself."""
    for path in tree.files:
        if path.stem == name or name in path.parts[:-1]:
            return True
    own = re.compile(rf"""^\s*name\s*=\s*["']?{_spelling(name)}["']?\s*$""", re.MULTILINE)
    return any(own.search(text) for text in _declarations(tree))


def _is_declared(name: str, tree: Tree) -> bool:
    pattern = re.compile(rf"(?<![\w.-]){_spelling(name)}(?![\w-])", re.IGNORECASE)
    return any(pattern.search(text) for text in _declarations(tree))


def _declarations(tree: Tree) -> Iterable[str]:
    for path in tree.files:
        if len(path.parts) <= len(PurePosixPath("requirements/test.txt").parts) and (
            _DECLARATIONS.fullmatch(path.name) or path.parent.name == "requirements"
        ):
            yield tree.text(path) or ""


def _spelling(name: str) -> str:
    return "[-_.]".join(map(re.escape, name.split("_")))
