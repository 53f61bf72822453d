"""Measures what a model receives in a run: the first request, and the growth of ten further turns.

    python benchmarks/prompt_size.py [--only NAME]... [--index URL] [--json FILE]

The projects are source distributions, fetched at run time, with one planted bug each. A scripted
model searches, reads, runs the tests, repairs the bug and runs them again. The C++ exercise bundles
the header of Debian's package catch2, if it is installed. Tokens are characters divided by 4.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import anyio

from assay.contracts.errors import AssayError
from assay.contracts.goal import RunLimits, RunRequest
from assay.contracts.messages import (
    Message,
    ModelInfo,
    Price,
    Reply,
    Request,
    StopReason,
    ToolCall,
    Usage,
)
from assay.contracts.ports import OnText, ignore_text
from assay.runs.request import RunCallbacks
from assay.runs.runner import Lent, start_run
from assay.settings.load import Settings, load_settings
from assay.wiring import open_backend

_CHARS_PER_TOKEN = 4
_CATCH = Path("/usr/include/catch2/catch.hpp")
_INFO = ModelInfo(
    context_tokens=1_000_000,
    max_output_tokens=8_192,
    tool_calls=True,
    price=Price(input_usd=0.0, output_usd=0.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A source distribution with a planted bug, and the goal that describes it."""

    name: str
    version: str
    sha256: str
    goal: str
    check: str
    path: str
    right: str
    """The code that is replaced by `wrong` before the run, and that the model restores."""
    wrong: str
    symbol: str
    packages: tuple[str, ...] = ()


_FLASK = (
    "werkzeug==3.0.3",
    "jinja2==3.1.4",
    "itsdangerous==2.2.0",
    "click==8.1.7",
    "blinker==1.8.2",
)
PROJECTS = (
    Project(
        name="click",
        version="8.2.1",
        sha256="27c491cc05d968d271d5a1db13e3b5a184636d9d930f148c50b038f0d0646202",
        goal="The short help of a command is cut in the wrong place: it should end with the "
        "first sentence. See `make_default_short_help`.",
        check="pytest tests",
        path="src/click/utils.py",
        right='if word[-1] == ".":',
        wrong='if word[-1] == "!":',
        symbol="make_default_short_help",
    ),
    Project(
        name="boltons",
        version="26.2.0",
        sha256="d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c",
        goal="`IndexedSet` returns the wrong item for a negative index.",
        check="pytest tests",
        path="boltons/setutils.py",
        right="index += len(self)\n        if index < 0 or index >= len(self):",
        wrong="index += len(self) - 1\n        if index < 0 or index >= len(self):",
        symbol="IndexedSet",
    ),
    Project(
        name="humanize",
        version="4.9.0",
        sha256="582a265c931c683a7e9b8ed9559089dea7edcf6cc95be39a3cbc2c5d5ac2bcfa",
        goal="naturaltime() says 'from now' for times in the past.",
        check="pytest tests/test_time.py",
        path="src/humanize/time.py",
        right='ago = _("%s from now") if future else _("%s ago")',
        wrong='ago = _("%s ago") if future else _("%s from now")',
        symbol="naturaltime",
        packages=("freezegun==1.5.1", "humanize==4.9.0"),
    ),
    Project(
        name="attrs",
        version="25.3.0",
        sha256="75d7cefc7fb576747b2c81b4442d4d4a1ce0900973527c011d1030fd3bf4af1b",
        goal="The `in_` validator accepts values that are not among the options.",
        check="pytest tests/test_validators.py",
        path="src/attr/validators.py",
        right="        if not in_options:",
        wrong="        if in_options is None:",
        symbol="_InValidator",
        packages=("hypothesis",),
    ),
    Project(
        name="jinja2",
        version="3.1.4",
        sha256="4a3aee7acbbe7303aede8e9648d13b8bf88a429282aa6122a993f0ac800cb369",
        goal="The `indent` filter indents empty lines although `blank` is false.",
        check="pytest tests",
        path="src/jinja2/filters.py",
        right="indention + line if line else line for line in lines",
        wrong="indention + line for line in lines",
        symbol="do_indent",
        packages=("markupsafe==2.1.5",),
    ),
    Project(
        name="flask",
        version="3.0.3",
        sha256="ceb27b0af3823ea2737928a4d99d125a06175b8512c445cbd9a9ce200ef76842",
        goal="`get_flashed_messages` ignores the category filter.",
        check="pytest tests",
        path="src/flask/helpers.py",
        right="flashes = list(filter(lambda f: f[0] in category_filter, flashes))",
        wrong="flashes = list(flashes)",
        symbol="get_flashed_messages",
        packages=_FLASK,
    ),
    Project(
        name="marshmallow",
        version="3.21.3",
        sha256="4f57c5e050a54d66361e826f94fba213eb10b67b2fdb02c3e0343ce207ba1662",
        goal="validate.Length accepts values that are too short by one.",
        check="pytest tests/test_validate.py",
        path="src/marshmallow/validate.py",
        right="if self.min is not None and length < self.min:",
        wrong="if self.min is not None and length < self.min - 1:",
        symbol="class Length",
        packages=("simplejson", "pytz"),
    ),
    Project(
        name="requests",
        version="2.32.3",
        sha256="55365417734eb18255590a9ff9eb97e9e1da868d4ccd6402399eaf68af20a760",
        goal="The encoding of a response is wrong if its charset is quoted.",
        check="pytest tests/test_utils.py",
        path="src/requests/utils.py",
        right="""return params["charset"].strip("'\\"")""",
        wrong='return params["charset"]',
        symbol="get_encoding_from_headers",
        packages=("pytest-httpbin", "trustme", "urllib3", "idna", "certifi", "charset-normalizer"),
    ),
    Project(
        name="django",
        version="5.0.6",
        sha256="ff1b61005004e476e0aeea47c7f79b85864c70124030e95146315396f1e7951f",
        goal="`slugify` keeps dashes and underscores at the ends of a slug.",
        check="sh -c 'PYTHONPATH=.:$PYTHONPATH python tests/runtests.py utils_tests.test_text'",
        path="django/utils/text.py",
        right='value).strip("-_")',
        wrong="value)",
        symbol="def slugify",
        packages=("asgiref==3.8.1", "sqlparse==0.5.0"),
    ),
)

_CPP_FILES = {
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.5)\nproject(complex CXX)\n"
    "enable_testing()\nadd_executable(complex complex_test.cpp complex.cpp test/tests-main.cpp)\n"
    "add_test(NAME complex COMMAND complex)\n",
    "complex.h": "#pragma once\n\nnamespace complex {\nclass Complex {\n   public:\n"
    "    Complex(double real, double imag) : re{real}, im{imag} {}\n"
    "    double real() const { return re; }\n    double imag() const { return im; }\n"
    "    Complex operator*(const Complex& other) const;\n\n   private:\n    double re;\n"
    "    double im;\n};\n}  // namespace complex\n",
    "complex.cpp": '#include "complex.h"\n\nnamespace complex {\n'
    "Complex Complex::operator*(const Complex& other) const {\n"
    "    return Complex{re * other.re + im * other.im, re * other.im + im * other.re};\n}\n"
    "}  // namespace complex\n",
    "complex_test.cpp": '#include "complex.h"\n#include "test/catch.hpp"\n\n'
    'TEST_CASE("Multiply imaginary numbers") {\n'
    "    const complex::Complex i{0.0, 1.0};\n    REQUIRE((i * i).real() == Approx(-1.0));\n"
    "    REQUIRE((i * i).imag() == Approx(0.0));\n}\n",
    "test/tests-main.cpp": '#define CATCH_CONFIG_MAIN\n#include "catch.hpp"\n',
}
CPP = Project(
    name="C++ exercise",
    version="",
    sha256="",
    goal="Products of complex numbers are wrong. Correct complex.cpp.",
    check="cmake -S . -B build >/dev/null && cmake --build build && ctest --test-dir build",
    path="complex.cpp",
    right="re * other.re - im * other.im",
    wrong="re * other.re + im * other.im",
    symbol="operator",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The sizes of one run, in tokens."""

    name: str
    files: int
    first: int
    turns: tuple[int, ...]
    """The growth of each turn."""
    unasked: tuple[int, ...]
    """The part of it that is neither the model's reply nor the answer of a tool."""
    prefix_kept: bool
    """Whether each request begins with the one before, so that a provider can cache it."""
    verdict: str
    reason: str
    seconds: float
    message: str
    """The first message."""


def turns_of(project: Project) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of the scripted model; a run without them would not be accepted."""
    read = {"path": project.path, "from_line": 1, "to_line": 120}
    return [
        ("search", {"pattern": re.escape(project.symbol), "context": 5}),
        ("read_file", read),
        ("run", {"command": project.check}),
        ("search", {"pattern": re.escape(project.wrong.strip()), "path": project.path}),
        ("read_file", {**read, "from_line": 121, "to_line": 240}),
        (
            "edit_file",
            {"path": project.path, "search": project.wrong, "replace": project.right},
        ),
        ("run", {"command": project.check}),
        ("list_files", {"path": str(Path(project.path).parent)}),
        ("read_file", {**read, "to_line": 20}),
        ("run", {"command": "ls"}),
        ("done", {}),
    ]


@dataclass(slots=True)
class RecordingModel:
    """Plays the turns, and keeps the requests that offer tools."""

    turns: list[tuple[str, dict[str, Any]]]
    info: ModelInfo = _INFO
    name: str = "recorded"
    asked: list[Request] = field(default_factory=list[Request])

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        del on_text
        usage = Usage(calls=1)
        if not request.tools:
            message = Message(role="assistant", text="1. Find the mistake and correct it.")
            return Reply(
                message=message, stop_reason=StopReason.ENDED, usage=usage, model=self.name
            )
        self.asked.append(request)
        place = min(len(self.asked), len(self.turns)) - 1
        name, arguments = self.turns[place]
        call = ToolCall(id=f"call_{len(self.asked)}", name=name, arguments=arguments)
        message = Message(role="assistant", text=f"Step {len(self.asked)}.", tool_calls=(call,))
        return Reply(
            message=message, stop_reason=StopReason.TOOL_CALLS, usage=usage, model=self.name
        )


def tokens_of(request: Request) -> int:
    """Return the estimated tokens of a request, with the descriptions of the tools."""
    tools = [[tool.name, tool.description, tool.parameters] for tool in request.tools]
    chars = len(json.dumps(tools, default=dict)) + sum(map(_chars, request.messages))
    return chars // _CHARS_PER_TOKEN


def _chars(message: Message) -> int:
    calls = sum(
        len(call.name) + len(json.dumps(dict(call.arguments or {}))) for call in message.tool_calls
    )
    return len(message.text) + calls


_NOTE = re.compile(r"\n\([^\n]*\)\Z")


def unasked_in(messages: tuple[Message, ...]) -> int:
    """Return the characters of new messages that no call of the model asked for."""
    notes = (_NOTE.search(message.text) for message in messages if message.role == "tool")
    others = sum(_chars(each) for each in messages if each.role not in {"assistant", "tool"})
    return others + sum(len(note[0]) for note in notes if note)


def download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - the caller's index
        return answer.read()


def fetch(project: Project, index: str, folder: Path) -> Path:
    """Unpack a source distribution and plant its bug; none of its code runs here."""
    page_url = f"{index.rstrip('/')}/{project.name}/"
    page = download(page_url).decode()
    file = re.compile(
        rf'href="([^"]*/{project.name}-{re.escape(project.version)}\.tar\.gz[^"]*)"', re.IGNORECASE
    )
    found = file.search(page)
    if found is None:
        sys.exit(f"the index has no source distribution of {project.name} {project.version}")
    content = download(urljoin(page_url, found[1]))
    if hashlib.sha256(content).hexdigest() != project.sha256:
        sys.exit(f"the source distribution of {project.name} has another hash than expected")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    file_with_bug = root / project.path
    source = file_with_bug.read_text()
    if source.count(project.right) != 1:
        sys.exit(f"{project.path} of {project.name} does not have the expected code once")
    file_with_bug.write_text(source.replace(project.right, project.wrong))
    return root


def write_cpp(folder: Path) -> Path:
    """Write the C++ exercise with its bundled header."""
    for name, text in _CPP_FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(_CATCH, folder / "test" / "catch.hpp")
    return folder


def prepare(project: Project, index: str, scratch: Path) -> Path:
    """Return a folder with the files of a project."""
    folder = scratch / "source"
    folder.mkdir()
    return write_cpp(folder) if project is CPP else fetch(project, index, folder)


def count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


async def measure(project: Project, index: str, settings: Settings) -> Result:
    """Run one goal and return the sizes of its requests."""
    with tempfile.TemporaryDirectory(prefix="assay-prompts-") as scratch:
        workspace = await anyio.to_thread.run_sync(prepare, project, index, Path(scratch))
        request = RunRequest(
            goal=project.goal,
            workspace=workspace,
            checks=(project.check,),
            model="recorded",
            packages=project.packages,
            limits=RunLimits(attempts=1, wall_s=1800, baseline_timeout_s=300),
            memory="off",
        )
        apart = settings.model_copy(update={"state_dir": Path(scratch, "state")})
        sandbox = apart.sandbox.model_copy(update={"packages": project.packages})
        model = RecordingModel(turns_of(project))
        started = time.monotonic()
        async with open_backend(sandbox, on_notice=print) as backend:
            outcome = await start_run(
                request, apart, RunCallbacks(), lent=Lent(backend=backend, model=model)
            )
        files = await anyio.to_thread.run_sync(count_files, workspace)
    asked = model.asked
    sizes = [tokens_of(each) for each in asked]
    new = [later.messages[len(before.messages) :] for before, later in pairwise(asked)]
    return Result(
        name=f"{project.name} {project.version}".strip(),
        files=files,
        first=sizes[0],
        turns=tuple(later - before for before, later in pairwise(sizes)),
        unasked=tuple(unasked_in(each) // _CHARS_PER_TOKEN for each in new),
        prefix_kept=all(
            later.messages[: len(before.messages)] == before.messages
            for before, later in pairwise(asked)
        ),
        verdict=outcome.grade.value if outcome.grade else outcome.status.value,
        reason=outcome.reason,
        seconds=round(time.monotonic() - started, 1),
        message=asked[0].messages[1].text,
    )


def table_of(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    head = "| project | files | first request | last request | median turn | largest turn | unasked"
    rows = [f"{head} | verdict |", "|---|---|---|---|---|---|---|---|"]
    for each in results:
        turns = each.turns or (0,)
        rows.append(
            f"| {each.name} | {each.files:,} | {each.first:,} | {each.first + sum(turns):,} "
            f"| {statistics.median(turns):,.0f} | {max(turns):,} "
            f"| {max(each.unasked, default=0):,} | {each.verdict} |"
        )
    return "\n".join(rows)


async def measure_all(projects: list[Project], index: str) -> list[Result]:
    settings = load_settings()
    results: list[Result] = []
    for project in projects:
        try:
            result = await measure(project, index, settings)
        except AssayError as error:
            print(f"{project.name} is left out: {error}", file=sys.stderr, flush=True)
            continue
        print(json.dumps(asdict(replace(result, message=""))), file=sys.stderr, flush=True)
        results.append(result)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="names of projects")
    parser.add_argument(
        "--index",
        default=os.environ.get("PIP_INDEX_URL", ""),
        help="the simple API of a package index [default: PIP_INDEX_URL]",
    )
    parser.add_argument("--json", type=Path, help="write every result to this file")
    arguments = parser.parse_args()
    if not arguments.index:
        parser.error("name the package index with --index, or set PIP_INDEX_URL")
    known: Mapping[str, Project] = {each.name: each for each in (*PROJECTS, CPP)}
    chosen = [known[name] for name in arguments.only] or [*known.values()]
    if CPP in chosen and not _CATCH.is_file():
        print(f"the C++ exercise is left out: there is no {_CATCH}", file=sys.stderr)
        chosen.remove(CPP)
    results = anyio.run(measure_all, chosen, arguments.index)
    print(table_of(results))
    firsts = [each.first for each in results]
    print(f"\nfirst request: median {statistics.median(firsts):,.0f}, largest {max(firsts):,}")
    print(f"every request begins with the one before: {all(e.prefix_kept for e in results)}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
