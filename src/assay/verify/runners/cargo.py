"""Run `cargo test`: build once, then run each test program and read its report.

Contains the readers for the output of cargo and of Rust's test programs (libtest).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final

from assay.contracts.execution import WORKSPACE
from assay.contracts.verdict import TamperKind, TestResult, TestStatus
from assay.contracts.workspace import Tree
from assay.verify.parse_command import Invocation, read_invocation
from assay.verify.report_checks import RawReport, ReportCapture, a_test, json_object
from assay.verify.runner import Canaries, CheckRun, Runner, plant
from assay.verify.spec import CheckSpec, doubt, forgery

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


def read_build(text: str) -> Build:
    """Read the messages of `cargo test --no-run --message-format=json`."""
    programs: list[TestProgram] = []
    errors: list[str] = []
    has_documentation = False
    for record in map(json_object, text.splitlines()):
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
    for record in map(json_object, text.splitlines()):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The arguments of `cargo test`, by recipient."""

    build: tuple[str, ...]
    program: tuple[str, ...]
    selecting: bool
    """Whether the arguments select what to build."""
    filtered: bool
    """Whether the arguments select only some of the tests."""


class CargoRunner(Runner):
    """Rust's built-in test runner."""

    name = "cargo"
    configuration = (
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

    def expected(self, check: CheckSpec, tree: Tree) -> frozenset[str]:
        if _read_words(read_invocation(check.argv)).selecting:
            return frozenset()
        return frozenset(
            f"{path}::{name}"
            for path in self.test_files(check)
            for name in named_tests(tree.text(path) or "")
        )

    def test_files(self, check: CheckSpec) -> tuple[PurePosixPath, ...]:
        """Return the protected files that cargo builds into test programs; none with a filter."""
        # A filter would leave out the canaries too.
        if _read_words(read_invocation(check.argv)).filtered:
            return ()
        return tuple(
            path for path in check.protected if path.suffix == ".rs" and path.parent.name == "tests"
        )

    def plan_canaries(self, check: CheckSpec, texts: Mapping[PurePosixPath, str]) -> Canaries:
        del check
        template = "#[test]\nfn {name}() {{ {act} }}\n"
        return {path: plant(f"{text}\n", template, _CANARIES) for path, text in texts.items()}

    async def execute(self, run: CheckRun) -> Sequence[RawReport]:
        before = await _lock_files(run)
        reports = await self._build_and_run(run)
        # Remove a `Cargo.lock` that cargo has created.
        for path in await _lock_files(run) - before:
            await run.sandbox.remove_path(path)
        return reports

    async def _build_and_run(self, run: CheckRun) -> list[RawReport]:
        words = _read_words(run.call)
        capture = ReportCapture("stdout", run.on_output)
        arguments = ("cargo", "test", *words.build)
        result = await run.start(
            *arguments, "--no-run", "--message-format=json", env=_ENV, on_output=capture
        )
        build = read_build(capture.text)
        if not result.succeeded:
            errors = (*build.errors, *_ERROR.findall(result.stderr))
            return [
                RawReport(
                    result=result,
                    problem=[*errors, "cargo could not build the tests"][0].partition("\n")[0],
                    output="\n".join(build.errors),
                    report_stream="stdout",
                )
            ]
        programs = [program.executable for program in build.programs]
        before = await run.output_of("sha256sum", *programs) if programs else b""
        reports = [await self._run_program(run, program, words) for program in build.programs]
        if build.has_documentation and not words.selecting:
            result = await run.start(*arguments, "--doc", "--", *words.program, env=_ENV)
            reports.append(RawReport(result=result, tests=read_doc_tests(result.stdout)))
        if programs and await run.output_of("sha256sum", *programs) != before:
            rewritten = forgery(
                TamperKind.CHANGED_WHILE_TESTED,
                "a test program was rewritten while the tests ran",
            )
            reports[0] = replace(reports[0], findings=(*reports[0].findings, rewritten))
            return reports
        # A program without tests says nothing.
        return [one for one in reports if one.tests or one.problem or not one.result.succeeded]

    async def _run_program(self, run: CheckRun, program: TestProgram, words: "_Words") -> RawReport:
        capture = ReportCapture("stdout", run.on_output)
        result = await run.start(
            program.executable,
            *words.program,
            *_JSON,
            cwd=program.folder,
            env={**_ENV, **_JSON_ENV, "CARGO_MANIFEST_DIR": str(WORKSPACE / program.folder)},
            on_output=capture,
        )
        tests, problem = read_suite(capture.text, program.source)
        ended_early = result.succeeded and problem
        planted = run.canaries.get(program.source)
        return RawReport(
            result=result,
            tests=tests,
            canaries=planted.names if planted else frozenset(),
            problem=problem,
            findings=(doubt(TamperKind.EARLY_EXIT, problem),) if ended_early else (),
            report_stream="stdout",
        )


def _read_words(call: Invocation) -> _Words:
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


async def _lock_files(run: CheckRun) -> frozenset[PurePosixPath]:
    files = await run.sandbox.list_files()
    return frozenset(info.path for info in files if info.path.name == "Cargo.lock")
