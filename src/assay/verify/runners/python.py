"""Run the user's pytest or unittest command with a driver that reports the real results.

The driver takes its functions before it imports any workspace file. Its report uses the real
standard output, which the program under test does not get. Output of that program goes to standard
error.
"""

import json
import posixpath
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from configparser import ConfigParser, Error
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import Command, ExecutionResult, OutputChunk, Reason
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import CheckReport, Finding, TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.text.formatting import count, trim
from assay.verify.discovery import find_test_definitions, is_test_file, parse_module, tree_below
from assay.verify.inverted_tests import Words
from assay.verify.parse_command import read_invocation
from assay.verify.report_checks import BAD, NONE_PASSED, explain_ending
from assay.verify.runner import Runner
from assay.verify.spec import CheckSpec, Execution, Observation, doubt, forgery

_PACKAGE: Final = "assay.verify.drivers"
_COMMON: Final = ("channel", "integrity", "canaries", "audit_hook", "origins")
# The driver modules are in `sys.modules` only while they import each other.
_BOOT: Final = """
def boot():
    import json, os, sys, types
    order = json.loads(sys.stdin.buffer.read())
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    # The sandbox sets it. An isolated interpreter ignores PYTHONPATH, and so does not import the
    # `sitecustomize` of a complete environment, which hides the interpreter's own packages.
    if "ASSAY_PACKAGES" in os.environ:
        folders = os.environ["ASSAY_PACKAGES"].split(":")
        if any(os.path.isfile(folder + "/sitecustomize.py") for folder in folders):
            sys.path[:] = [path for path in sys.path if not path.endswith("/site-packages")]
        sys.path[:0] = folders
    modules = {}
    for name, source in order.pop("modules"):
        modules[name] = sys.modules[name] = module = types.ModuleType(name)
        exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
    say = modules[order.pop("channel")].open_channel(bytes.fromhex(order.pop("key")))
    for name in modules:
        del sys.modules[name]
    del globals()["boot"]
    run = module.run
    del modules, module, name, source
    sys.exit(run(order, say))
boot()
"""
_USAGE_ERROR: Final = 4
_NO_TESTS: Final = 5
_ACTS: Final = {
    # Audit events of the interpreter, independent of the names in the source.
    event: (kind, said)
    for events, kind, said in (
        (
            "exec compile marshal.loads marshal.load code.__new__ function.__new__",
            TamperKind.HIDDEN_CODE,
            "makes code from what cannot be read",
        ),
        (
            "gc.get_objects gc.get_referrers gc.get_referents",
            TamperKind.PATCHED_RUNNER,
            "looks through memory",
        ),
        (
            "sys.settrace sys.setprofile sys.addaudithook",
            TamperKind.PATCHED_RUNNER,
            "watches the process",
        ),
        (
            "sys._getframe sys._current_frames sys._current_exceptions",
            TamperKind.DETECTS_VERIFIER,
            "looks at who is calling",
        ),
        (
            "__code__ __defaults__ __kwdefaults__ tb_frame gi_frame cr_frame ag_frame f_code",
            TamperKind.DETECTS_VERIFIER,
            "reaches into what runs it",
        ),
        ("pickle.find_class", TamperKind.HIDDEN_CODE, "unpickles what can run code"),
        (
            "open",
            TamperKind.READS_TESTS,
            "opens the tests, or what the system knows of their process,",
        ),
        ("sys.meta_path", TamperKind.SHADOWED_RUNNER, "decides what an import gives"),
    )
    for event in events.split()
}
_OTHER_ACT: Final = (TamperKind.HIDDEN_CODE, "goes around the interpreter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Run conditions that correct code does not depend on."""

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    reverse: bool = False
    """Run the tests in reverse order."""
    brief: bool = False
    """Leave out failure details, which are not shown for this run."""
    words: Words = field(default_factory=Words)
    """The names of the functions that rewritten tests call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRun:
    """An observation, and the data that only rewritten tests report."""

    observation: Observation
    reached: Mapping[str, frozenset[str]]
    """By test: the numbers of the assertions that were reached."""
    complete: bool
    """Whether the driver ran to its end."""


class PythonRunner(Runner):
    """A runner whose tests a driver of `assay.verify.drivers` runs; the driver plants canaries."""

    def understands(self, argv: tuple[str, ...]) -> bool:
        return read_invocation(argv).program == self.name

    async def run(
        self, check: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        return (await self.run_under(Conditions(), check, sandbox, on_output=on_output)).observation

    async def run_under(
        self,
        conditions: Conditions,
        check: CheckSpec,
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> PythonRun:
        """Run the check under other conditions.

        Raises:
            SandboxUnavailableError: If the sandbox is gone.
        """
        call = read_invocation(check.argv)
        key = secrets.token_bytes(32)
        payload = {
            "modules": _sources(f"{self.name}_driver"),
            "channel": f"{_PACKAGE}.channel",
            "key": key.hex(),
            "args": list(call.arguments),
            "path": call.env.get("PYTHONPATH", ""),
            "protected": [posixpath.relpath(path, call.cwd) for path in check.protected],
            "canaries": check.canaries,
            "reverse": conditions.reverse,
            "brief": conditions.brief,
            "words": [conditions.words.tell, conditions.words.keep, conditions.words.other],
            "root": posixpath.relpath(".", call.cwd),
            "changed": [str(path) for path in check.changed],
            "removed": [str(path) for path in check.removed],
        }

        def show(chunk: OutputChunk) -> None:
            # The report is internal; the output of the tests comes on the other stream.
            if chunk.stream == "stderr":
                on_output(OutputChunk(stream="stdout", data=chunk.data))

        command = Command(
            argv=("python3", "-I", "-B", "-c", _BOOT),
            stdin=json.dumps(payload).encode(),
            env={**conditions.env, **call.env},
            cwd=call.cwd,
            timeout_s=check.timeout_s,
        )
        result = await sandbox.run(command, on_output=show)
        report = _read_report(result.stdout_bytes, key)
        return PythonRun(
            observation=_observe(self.name, check, result, report),
            reached=report.reached,
            complete=report.ended is not None,
        )


@cache
def _sources(driver: str) -> tuple[tuple[str, str], ...]:
    folder = resources.files(_PACKAGE)
    return tuple(
        (f"{_PACKAGE}.{name}", folder.joinpath(f"{name}.py").read_text())
        for name in (*_COMMON, driver)
    )


@dataclass(slots=True)
class _Report:
    """What a driver has reported."""

    tests: list[TestResult] = field(default_factory=list[TestResult])
    reached: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    planted: int = 0
    missed: int = 0
    facts: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    """By kind of fact, the names in it: `patched`, `changed` and `left`."""
    seen: dict[Finding, None] = field(default_factory=dict[Finding, None])
    ran: list[PurePosixPath] = field(default_factory=list[PurePosixPath])
    elsewhere: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    others: set[PurePosixPath] = field(default_factory=set[PurePosixPath])
    """Changed files whose modules came from elsewhere."""
    has_children: bool = False
    broken: tuple[str, str] | None = None
    ended: int | None = None
    """The exit code that the driver reported; None if it reported none."""
    forged: bool = False

    def names(self, kind: str) -> list[str]:
        return list(self.facts.get(kind, ()))

    def add(self, fields: list[str]) -> None:
        match fields:
            case ["test", name, status, message, detail, reached]:
                test = TestResult(
                    id=name, status=TestStatus(status), message=message, detail=detail
                )
                # pytest reports a file with a failed import once for each way to it.
                if test.status is not TestStatus.ERROR or test not in self.tests:
                    self.tests.append(test)
                self.reached[name] = frozenset(reached.split(",")) - {""}
            case ["canary", _, outcome]:
                self.planted += 1
                self.missed += outcome != "caught"
            case ["broken", kind, message]:
                self.broken = (kind, message)
            case ["end", code, _]:
                self.ended = int(code) if code.lstrip("-").isdigit() else 0
            case ["patched" | "changed" | "left" as kind, name]:
                self.facts.setdefault(kind, {})[name] = None
            case ["seen", act, path]:
                kind, said = _ACTS.get(act, _OTHER_ACT)
                where = PurePosixPath(path)
                self.seen[doubt(kind, f"{where} {said} when it runs: {act}", where)] = None
            case ["skips", path]:
                said = f"{path or 'something that hides itself'} skips the test that calls it"
                self.seen[forgery(TamperKind.TESTS_SKIPPED, said, _path(path))] = None
            case ["replaced", name, path]:
                self.seen[_replaced(name, path)] = None
            case ["ran", path]:
                self.ran.append(PurePosixPath(path))
            case ["elsewhere", name, file, path]:
                self.elsewhere.append((name, file))
                self.others.add(PurePosixPath(path))
            case ["child"]:
                self.has_children = True
            case _:
                self.forged = True


def _path(text: str) -> PurePosixPath | None:
    return PurePosixPath(text) if text else None


def _replaced(name: str, path: str) -> Finding:
    whose = f": it is {path} that is run" if path else ""
    said = f"{name} is not what stands in its file{whose}"
    if path and (name.startswith(f"{path}::") or f".{PurePosixPath(path).stem}." in f".{name}"):
        said = f"{name} is none of the given tests: it stands in {path}, which the agent may change"
    return doubt(TamperKind.TESTS_CHANGED, said, _path(path))


def _read_report(content: bytes, key: bytes) -> _Report:
    report = _Report()
    lines = content.split(b"\n")
    for number, line in enumerate(lines):
        if not line:
            continue
        seal, _, body = line.partition(b" ")
        expected = sha256(key + sha256(key + body).digest()).hexdigest()[:32]
        place, _, text = body.partition(b" ")
        genuine = secrets.compare_digest(seal, expected.encode()) and place == b"%d" % number
        if not genuine or report.ended is not None:
            # A line that was cut off by the end of the process is not a forgery.
            report.forged = report.ended is not None or number + 1 < len(lines)
            break
        report.add(json.loads(text))
        key = sha256(key + b"next").digest()
    return report


def _observe(
    runner: str, check: CheckSpec, result: ExecutionResult, report: _Report
) -> Observation:
    findings = tuple(_findings(check, result, report))
    explanation = _explanation(check, result, report)
    forgeries = [finding for finding in findings if finding.severity == "forgery"]
    problem = _explanation(check, result, report, apart=True)
    if forgeries:
        explanation = explanation or forgeries[0].explanation
        problem = problem or forgeries[0].explanation
    execution = Execution(
        files=tuple(report.ran),
        elsewhere=tuple(report.elsewhere),
        replaced=tuple(path for path in (*check.removed, *report.ran) if path in report.others),
        has_children=report.has_children,
    )
    return Observation(
        report=CheckReport(
            command=check.command,
            runner=runner,
            passed=not explanation,
            tests=tuple(report.tests),
            exit_code=result.exit_code,
            explanation=explanation,
            output=trim(result.stderr),
            canaries_planted=report.planted,
            canaries_caught=report.planted - report.missed,
            duration_s=result.duration_s,
        ),
        findings=findings,
        seen=tuple(report.seen),
        problem=problem,
        execution=execution if check.changed or check.removed else None,
    )


def _explanation(
    check: CheckSpec, result: ExecutionResult, report: _Report, *, apart: bool = False
) -> str:
    """Return why the check did not pass, apart from its failed tests or not; empty if it did."""
    why = ""
    bad = [test for test in report.tests if test.status in BAD]
    if bad and not apart:
        why = f"{len(bad)} of {count(len(report.tests), 'test')} did not pass"
    elif result.reason is not Reason.COMPLETED:
        why = explain_ending(result)
    elif report.ended is None and result.stdout_dropped_bytes:
        why = "its report is longer than the sandbox keeps"
    elif report.ended is None:
        why = f"the process ended with exit code {result.exit_code} before it reported"
    elif report.broken:
        why = f"the runner stopped: {report.broken[0]}: {report.broken[1]}"
    elif report.ended == _USAGE_ERROR and not report.tests:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else "it said nothing"
        why = f"the command has a wrong option or path: {last}"
    elif report.ended == _NO_TESTS or not report.tests:
        why = "it found no tests"
    elif not any(test.passed for test in report.tests):
        why = NONE_PASSED if bad else "all tests were skipped"
    elif check.canaries and not report.planted:
        why = "no test that must fail could be planted"
    return why


def _findings(check: CheckSpec, result: ExecutionResult, report: _Report) -> Iterator[Finding]:
    if report.forged:
        yield forgery(TamperKind.FORGED_REPORT, "something else wrote into the report")
    by_itself = result.reason in {Reason.COMPLETED, Reason.SIGNALLED}
    cut_short = report.ended is None and by_itself and not result.stdout_dropped_bytes
    broken_off = report.broken is not None and report.broken[0] in {"SystemExit", "Exit"}
    # A file may end the process during its import; unittest continues after that.
    exits = [
        test.message.partition(": ")[2]
        for test in report.tests
        if "_FailedTest" in test.id and test.message.partition(":")[0] == "SystemExit"
    ]
    if cut_short or broken_off or exits:
        code = exits[0] if exits else report.broken[1] if report.broken else result.exit_code
        ending = f"signal {result.signal}" if result.signal else f"exit code {code}"
        ran = f"{len(report.tests)} tests had been reported" if report.tests else "no test had run"
        said = f"`{check.command}` was ended from within, with {ending}, when {ran}"
        # An exit with an error does not claim success.
        claims = not result.signal and str(code) in {"0", "None", ""}
        yield (forgery if claims else doubt)(TamperKind.EARLY_EXIT, said)
    if patched := report.names("patched"):
        said = f"the test runner was changed in memory: {', '.join(patched[:5])}"
        yield forgery(TamperKind.PATCHED_RUNNER, said)
    if report.missed:
        said = f"{report.missed} of {report.planted} tests that must fail passed"
        yield forgery(TamperKind.PATCHED_RUNNER, said)
    if changed := report.names("changed"):
        said = f"what the tests use was changed in memory: {', '.join(changed[:5])}"
        yield doubt(TamperKind.PATCHED_RUNNER, said)
    if left := report.names("left"):
        said = f"a process was left running when the tests had ended: {left[0]}"
        yield doubt(TamperKind.CHANGED_WHILE_TESTED, said)


_WITH_VALUE: Final = frozenset(
    {
        "-p", "-c", "-o", "-r", "-W", "--rootdir", "--confcutdir", "--basetemp", "--tb", "--color",
        "--durations", "--junitxml", "--junit-xml", "--maxfail", "--import-mode", "--capture",
        "--log-level", "--timeout", "--cov", "--cov-report",
    }
)  # fmt: skip
# Options that deselect tests; the files do not show which tests remain.
_SELECTING: Final = (
    "-k", "-m", "--deselect", "--ignore", "--lf", "--last-failed", "--ff", "--sw", "--stepwise",
    "--nf", "--co", "--collect-only", "--pyargs", "--import-mode", "-c", "-o", "--override-ini",
)  # fmt: skip
_STEERING: Final = frozenset(
    {"addopts", "testpaths", "python_files", "python_classes", "python_functions", "norecursedirs"}
)
_SKIPPED_FOLDERS: Final = frozenset({"build", "dist", "node_modules", "venv", "CVS", "_darcs"})


class PytestRunner(PythonRunner):
    """Runner for pytest."""

    name = "pytest"
    configuration = (
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        ".coveragerc",
    )

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        invocation = read_invocation(check.argv)
        args = invocation.arguments
        tree = tree_below(invocation.cwd, tree)
        if any(word.split("=")[0] in _SELECTING or word[:2] in {"-k", "-m"} for word in args):
            return frozenset()
        chosen = tuple(_paths(args))
        # The tests that a configuration selects are not known here; only repeated reports must
        # agree.
        if _STEERING & _settings(tree).keys():
            chosen = tuple(word for word in chosen if word.endswith(".py"))
            if not chosen:
                return frozenset()
        return frozenset(
            name for path in tree.files for name in _expected_in(tree, path, chosen or (".",))
        )


def _paths(args: tuple[str, ...]) -> Iterator[str]:
    words = iter(args)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            yield word


def _expected_in(tree: Tree, path: PurePosixPath, chosen: tuple[str, ...]) -> Iterator[str]:
    roots = {word: PurePosixPath(word.partition("::")[0]) for word in chosen}
    wanted = [word for word, root in roots.items() if path == root or root in path.parents]
    if not wanted or path.suffix != ".py":
        return
    if not any(roots[word] == path for word in wanted) and (
        not is_test_file(path)
        or any(part in _SKIPPED_FOLDERS or part.startswith(".") for part in path.parts[:-1])
    ):
        return
    module = parse_module(tree, path)
    for test in find_test_definitions(module) if module else ():
        name = "::".join((str(path), *test.scope, test.name))
        if any(_selects(word, name) for word in wanted):
            yield name


def _selects(word: str, name: str) -> bool:
    rest = word.partition("::")[2].partition("[")[0]
    mine = name.partition("::")[2]
    return not rest or mine == rest or mine.startswith(f"{rest}::")


def _settings(tree: Tree) -> dict[str, Any]:
    """Return the pytest settings of the root files; only the first file with settings counts."""
    for name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"):
        text = tree.text(PurePosixPath(name))
        if text is not None:
            return _toml(text, "pytest") if name.endswith("toml") else _ini(text, "pytest")
    pytest = _toml(tree.text(PurePosixPath("pyproject.toml")) or "", "tool", "pytest")
    found = cast("dict[str, Any]", pytest.get("ini_options", pytest))
    for name, section in (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
        found = found or _ini(tree.text(PurePosixPath(name)) or "", section)
    return found


def _toml(text: str, *keys: str) -> dict[str, Any]:
    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
    for key in keys:
        table = cast("dict[str, Any]", table).get(key) if isinstance(table, dict) else None
    return cast("dict[str, Any]", table) if isinstance(table, dict) else {}


def _ini(text: str, section: str) -> dict[str, Any]:
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except Error:
        return {}
    return dict(parser.items(section)) if parser.has_section(section) else {}


_SHORT_OPTIONS: Final = ("-v", "-q", "-f", "-b", "-c", "--verbose", "--quiet", "--failfast",
                         "--buffer", "--catch", "--locals")  # fmt: skip


class UnittestRunner(PythonRunner):
    """Runner for unittest."""

    name = "unittest"
    configuration = ("setup.cfg", "pyproject.toml", ".coveragerc")

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        invocation = read_invocation(check.argv)
        tree = tree_below(invocation.cwd, tree)
        words = [word for word in invocation.arguments if word not in _SHORT_OPTIONS]
        # A folder, pattern or name filter: the files do not show which tests remain.
        if any(word.startswith("-") for word in words):
            return frozenset()
        if words in ([], ["discover"]):
            paths = [path for path in tree.files if is_test_file(path, ("test*.py",))]
            return frozenset(
                name for path in paths if _is_reached(tree, path) for name in _ids(tree, path)
            )
        return frozenset(name for word in words for name in _ids_named(tree, word))


def _is_reached(tree: Tree, path: PurePosixPath) -> bool:
    """Whether discovery finds a file: it enters only packages."""
    folders = list(path.parents)[:-1]
    return all(folder / "__init__.py" in tree.files for folder in folders)


def _ids(tree: Tree, path: PurePosixPath) -> frozenset[str]:
    module = parse_module(tree, path)
    if module is None:
        return frozenset()
    prefix = path.with_suffix("").parts
    return frozenset(
        ".".join((*prefix, *test.scope, test.name))
        for test in find_test_definitions(module)
        if test.unittest
    )


def _ids_named(tree: Tree, word: str) -> frozenset[str]:
    """Return the IDs of a module, class or method by its dotted name, or of a file by its path."""
    if word.endswith(".py"):
        return _ids(tree, PurePosixPath(word))
    parts = word.split(".")
    for length in range(len(parts), 0, -1):
        path = PurePosixPath(*parts[:length]).with_suffix(".py")
        if path in tree.files:
            names = _ids(tree, path)
            return frozenset(n for n in names if n == word or n.startswith(f"{word}."))
    return frozenset()
