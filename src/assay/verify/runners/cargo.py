"""Run `cargo test`: build once, then run each test program and read its JSON report.

A test program contains the tested code and reports on itself, so it could print a forged report.
The report must end with consistent totals and with failed canaries; an early exit or a panic hook
leaves them out. The program could read the canary names from the test files. That is not prevented,
but its signs in the source are reported as a doubt.
"""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.execution import WORKSPACE, Command, ExecutionResult
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.verdict import Finding, Grade, TamperKind
from assay.contracts.workspace import Tree
from assay.verify.canaries import Plan, new_canary_name, planted, read_texts
from assay.verify.parse_command import Invocation, read_invocation
from assay.verify.report_checks import RawReport, ReportCapture, combine, conclude, with_doubt
from assay.verify.runner import CheckSpec, Observation
from assay.verify.runners.rust_libtest import (
    TestProgram,
    named_tests,
    read_build,
    read_doc_tests,
    read_suite,
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
            trick=TamperKind.CHANGED_WHILE_TESTED,
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
    return (Finding(trick=TamperKind.EARLY_EXIT, severity="doubt", explanation=problem),)
