"""Run `cargo test`: build once, then run each test program and read its report.

Contains the readers for the output of cargo and of Rust's test programs (libtest).
"""

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, cast

from assay.contracts.execution import WORKSPACE, Command, ExecutionResult
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Finding, Grade, TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, new_canary_name, planted, read_texts
from assay.verify.parse_command import Invocation, read_invocation
from assay.verify.report_checks import (
    RawReport,
    ReportCapture,
    a_test,
    combine,
    conclude,
    with_doubt,
)
from assay.verify.spec import CheckSpec, Observation

_TOP_LEVEL_TEST: Final = re.compile(
    r"(?<!\]\n)^#\[test\]\n(?:#\[(?:ignore|should_panic)[^\n]*\]\n)*fn (?P<name>\w+)\(",
    re.MULTILINE,
)
_BLOCK_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_RAW_STRING: Final = re.compile(r'\br(#+)".*?"\1', re.DOTALL)
_DOC_TEST: Final = re.compile(
    r"^test (?P<name>\S+ - .*?\(line \d+\).*?) \.\.\. (?P<status>ok|FAILED|ignored)$", re.MULTILINE
)
_STATUSES: Final = {
    "ok": TestStatus.PASSED,
    "failed": TestStatus.FAILED,
    "timeout": TestStatus.FAILED,
    "ignored": TestStatus.SKIPPED,
}
_PANIC: Final = re.compile(r"^thread .* panicked at (?P<where>[^\n]*?):?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestProgram:
    """One executable that cargo built from tests."""

    __test__ = False

    executable: str
    source: PurePosixPath
    """The path from the workspace root, which prefixes the test IDs."""
    folder: PurePosixPath
    """The package folder, from the workspace root."""
    separate: bool
    """Whether it was built from a test file and not from tests within the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The programs that cargo built, or the reason for its failure."""

    programs: tuple[TestProgram, ...]
    has_documentation: bool
    """Whether there is a library whose documentation examples can be tested."""
    errors: tuple[str, ...]


def named_tests(text: str) -> tuple[str, ...]:
    """Return the names of the tests outside of modules and macros."""
    text = _RAW_STRING.sub('""', _BLOCK_COMMENT.sub("", text))
    return tuple(match["name"] for match in _TOP_LEVEL_TEST.finditer(text))


def _records(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield cast("dict[str, Any]", record)


def read_build(text: str) -> Build:
    """Read the messages of `cargo test --no-run --message-format=json`."""
    programs: list[TestProgram] = []
    errors: list[str] = []
    has_documentation = False
    for record in _records(text):
        match record:
            case {
                "reason": "compiler-message",
                "message": {"level": "error", "rendered": rendered},
            }:
                errors.append(str(rendered))
            case {
                "reason": "compiler-artifact",
                "executable": str(executable),
                "profile": {"test": True},
                "manifest_path": str(manifest),
                "target": {"src_path": str(source), "kind": [*kinds]},
            }:
                programs.append(
                    TestProgram(
                        executable=executable,
                        source=_inside(source),
                        folder=_inside(manifest).parent,
                        separate="test" in kinds,
                    )
                )
            case {"reason": "compiler-artifact", "target": {"doctest": True}}:
                has_documentation = True
            case _:
                pass
    # Programs of the user's test files run first, before other code could tamper with them.
    programs.sort(key=lambda program: not program.separate)
    return Build(
        programs=tuple(programs), has_documentation=has_documentation, errors=tuple(errors)
    )


def _inside(path: str) -> PurePosixPath:
    whole = PurePosixPath(path)
    return whole.relative_to(WORKSPACE) if whole.is_relative_to(WORKSPACE) else whole


def read_suite(text: str, source: PurePosixPath) -> tuple[tuple[TestResult, ...], str]:
    """Read the JSON report of one test program; the second value describes its errors."""
    tests: list[TestResult] = []
    announced = 0
    totals: dict[str, Any] | None = None
    for record in _records(text):
        match record:
            case {"type": "suite", "event": "started", "test_count": int(count)}:
                announced += count
            case {"type": "suite", "event": "ok" | "failed"}:
                totals = record
            case {"type": "test", "event": str(event), "name": str(name)} if event in _STATUSES:
                tests.append(_result(f"{source}::{name}", event, record))
            case _:
                pass
    if totals is None:
        return tuple(tests), f"the tests of {source} ended before they reported"
    counted = sum(_count(totals, name) for name in ("passed", "failed", "ignored"))
    if counted != len(tests) or announced != len(tests):
        return tuple(tests), f"the report on {source} does not fit its own totals"
    return tuple(tests), ""


def _count(totals: dict[str, Any], name: str) -> int:
    value = totals.get(name)
    return value if isinstance(value, int) else 0


def _result(name: str, event: str, record: dict[str, Any]) -> TestResult:
    status = _STATUSES[event]
    printed = str(record.get("stdout", "")) if status is TestStatus.FAILED else ""
    message = str(record.get("message", ""))
    panic = _PANIC.search(printed)
    if panic:
        rest = printed[panic.end() :].partition("\nnote: ")[0].partition("\nstack backtrace:")[0]
        message = f"{' '.join(rest.split())} ({panic['where']})"
    return a_test(name, status, message=message, detail=printed)


def read_doc_tests(text: str) -> tuple[TestResult, ...]:
    """Read the output lines of `cargo test --doc`."""
    return tuple(
        a_test(match["name"], _STATUSES[match["status"].lower()])
        for match in _DOC_TEST.finditer(text)
    )


_ENV: Final = {
    # Keep build output out of the workspace.
    "CARGO_HOME": "/tmp/cargo-home",
    "CARGO_TARGET_DIR": "/tmp/cargo-target",
    "CARGO_INCREMENTAL": "0",
    "CARGO_NET_OFFLINE": "true",
    "CARGO_TERM_COLOR": "never",
    "RUST_BACKTRACE": "0",
}
_JSON: Final = ("-Zunstable-options", "--format", "json")
_JSON_ENV: Final = {"RUSTC_BOOTSTRAP": "1"}
"""Enables JSON reports with a stable compiler; the code itself is compiled without it."""
_WITH_VALUE: Final = frozenset(
    {
        "--test", "--bin", "--example", "--bench", "-p", "--package", "--exclude", "--features",
        "-F", "--profile", "--target", "--manifest-path", "-j", "--jobs", "--color",
    }
)  # fmt: skip
_SELECTING: Final = frozenset(
    {"--test", "--bin", "--example", "--bench", "--lib", "--bins", "--tests", "--benches"}
)
_CANARIES: Final = (
    "assert_eq!(1, 2);",
    "assert!(1 > 2);",
    "assert_ne!(1, 1);",
    'panic!("planted");',
)
_ERROR: Final = re.compile(r"^error: .*$", re.MULTILINE)
_SMALLEST_TIMEOUT_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The arguments of `cargo test`, by recipient."""

    build: tuple[str, ...]
    program: tuple[str, ...]
    selecting: bool
    """Whether the arguments select what to build."""
    filtered: bool
    """Whether the arguments select only some of the tests."""


class CargoRunner:
    """Rust's built-in test runner."""

    name = "cargo"
    most = Grade.PROVEN
    configuration: tuple[str, ...] = (
        "**/Cargo.toml",
        "**/Cargo.lock",
        "**/build.rs",
        "**/.cargo/**",
        "**/rust-toolchain*",
        "**/vendor/**",
    )

    def understands(self, argv: tuple[str, ...]) -> bool:
        call = read_invocation(argv)
        return call.program == "cargo" and call.arguments[:1] in {("test",), ("t",)}

    def expected(self, order: CheckSpec, tree: Tree) -> frozenset[str]:
        words = _words(read_invocation(order.argv))
        if words.filtered or words.selecting:
            return frozenset()
        return frozenset(
            f"{path}::{name}"
            for path in _roots(order)
            for name in named_tests(tree.text(path) or "")
        )

    async def run(
        self, order: CheckSpec, sandbox: Sandbox, *, on_output: OnOutput = ignore_output
    ) -> Observation:
        # A filter would leave out the canaries too.
        plant = order.canaries and not _words(read_invocation(order.argv)).filtered
        texts = await read_texts(sandbox, _roots(order)) if plant else {}
        canaries = {path: tuple(new_canary_name() for _ in _CANARIES) for path in texts}
        files = {path: _with_canaries(texts[path], names) for path, names in canaries.items()}
        check = _Check(order, sandbox, on_output)
        async with planted(sandbox, Plan(files=files)) as findings, _without_new_lock(sandbox):
            observation = await check.build_and_run(canaries)
        whole = (*observation.findings, *findings)
        return with_doubt(order, Observation(report=observation.report, findings=whole))


class _Check:
    """One check, from the build to the last test program."""

    def __init__(self, order: CheckSpec, sandbox: Sandbox, on_output: OnOutput) -> None:
        self._order = order
        self._sandbox = sandbox
        self._on_output = on_output
        self._call = read_invocation(order.argv)
        self._words = _words(self._call)
        self._left_s = order.timeout_s

    async def build_and_run(self, canaries: Mapping[PurePosixPath, tuple[str, ...]]) -> Observation:
        listener = ReportCapture("stdout", self._on_output)
        result = await self._start(
            ("cargo", "test", *self._words.build, "--no-run", "--message-format=json"),
            on_output=listener,
        )
        build = read_build(listener.text)
        if not result.succeeded:
            said = (
                *build.errors,
                *_ERROR.findall(result.stderr),
                "cargo could not build the tests",
            )
            account = RawReport(
                problem=said[0].partition("\n")[0],
                output="\n".join(build.errors),
                report_stream="stdout",
            )
            return conclude(self._order, CargoRunner.name, result, account)
        before = await self._digests(build.programs)
        parts = [
            await self._run_program(program, canaries.get(program.source, ()))
            for program in build.programs
        ]
        if build.has_documentation and not self._words.selecting:
            parts.append(await self._run_documentation())
        observation = combine(
            self._order, CargoRunner.name, [part for part in parts if part is not None]
        )
        if await self._digests(build.programs) == before:
            return observation
        rewritten = Finding(
            kind=TamperKind.CHANGED_WHILE_TESTED,
            severity="forgery",
            explanation="a test program was rewritten while the tests ran",
        )
        return Observation(report=observation.report, findings=(*observation.findings, rewritten))

    async def _run_program(
        self, program: TestProgram, canaries: tuple[str, ...]
    ) -> Observation | None:
        listener = ReportCapture("stdout", self._on_output)
        result = await self._start(
            (program.executable, *self._words.program, *_JSON),
            cwd=program.folder,
            env={**_JSON_ENV, "CARGO_MANIFEST_DIR": str(WORKSPACE / program.folder)},
            on_output=listener,
        )
        tests, problem = read_suite(listener.text, program.source)
        if result.succeeded and not tests and not problem:
            return None
        account = RawReport(
            tests=tests,
            canaries=frozenset(canaries),
            problem=problem,
            findings=_early_exit(problem) if result.succeeded and problem else (),
            report_stream="stdout",
        )
        return conclude(self._order, CargoRunner.name, result, account)

    async def _run_documentation(self) -> Observation | None:
        result = await self._start(
            ("cargo", "test", *self._words.build, "--doc", "--", *self._words.program),
            on_output=self._on_output,
        )
        tests = read_doc_tests(result.stdout)
        if result.succeeded and not tests:
            return None
        return conclude(self._order, CargoRunner.name, result, RawReport(tests=tests))

    async def _start(
        self,
        argv: tuple[str, ...],
        *,
        cwd: PurePosixPath | None = None,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput,
    ) -> ExecutionResult:
        result = await self._sandbox.run(
            Command(
                argv=argv,
                env={**_ENV, **(env or {}), **self._call.env},
                cwd=self._call.cwd if cwd is None else cwd,
                timeout_s=max(self._left_s, _SMALLEST_TIMEOUT_S),
            ),
            on_output=on_output,
        )
        self._left_s -= result.duration_s
        return result

    async def _digests(self, programs: tuple[TestProgram, ...]) -> str:
        if not programs:
            return ""
        names = (program.executable for program in programs)
        return (await self._sandbox.run(Command(argv=("sha256sum", *names)))).stdout


def _words(call: Invocation) -> _Words:
    arguments = call.arguments[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    build: list[str] = []
    filters: list[str] = []
    words = iter(arguments[:cut])
    for word in words:
        if word in _WITH_VALUE:
            build.extend((word, next(words, "")))
        elif word.startswith("-"):
            build.append(word)
        else:
            filters.append(word)
    after = tuple(word for word in arguments[cut + 1 :] if not word.startswith("--format"))
    return _Words(
        build=tuple(build),
        program=(*filters, *after),
        selecting=any(word.partition("=")[0] in _SELECTING for word in build),
        filtered=bool(filters) or any(not word.startswith("-") for word in after),
    )


@asynccontextmanager
async def _without_new_lock(sandbox: Sandbox) -> AsyncGenerator[None]:
    """Remove the `Cargo.lock` that cargo creates if there was none."""
    before = await _locks(sandbox)
    yield
    for path in await _locks(sandbox) - before:
        await sandbox.remove_path(path)


async def _locks(sandbox: Sandbox) -> frozenset[PurePosixPath]:
    return frozenset(
        info.path for info in await sandbox.list_files() if info.path.name == "Cargo.lock"
    )


def _roots(order: CheckSpec) -> tuple[PurePosixPath, ...]:
    """Return the protected files that cargo builds into test programs."""
    return tuple(
        path for path in order.protected if path.suffix == ".rs" and path.parent.name == "tests"
    )


def _with_canaries(text: str, names: tuple[str, ...]) -> bytes:
    planted_tests = (
        f"#[test]\nfn {name}() {{ {act} }}\n" for name, act in zip(names, _CANARIES, strict=True)
    )
    return f"{text}\n{''.join(planted_tests)}".encode()


def _early_exit(problem: str) -> tuple[Finding, ...]:
    return (Finding(kind=TamperKind.EARLY_EXIT, severity="doubt", explanation=problem),)
