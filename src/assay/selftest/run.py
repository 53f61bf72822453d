"""Runs the shipped suites against a backend and returns the results; the caller presents them."""

import time
import traceback
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass
from typing import Literal, cast

import anyio

from assay.contracts.errors import AssayError, UsageError
from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend
from assay.selftest.conformance import PROMISES
from assay.selftest.known_gaps import excuse_of
from assay.selftest.programs import KnownGapError
from assay.selftest.security_tests import CASES, check_case

Suite = Literal["conformance", "hostile"]
SUITES: tuple[Suite, ...] = ("conformance", "hostile")

Status = Literal["passed", "failed", "not_promised"]

NOT_HERE = "this machine cannot give it: "
"""The prefix of the detail of a check that turned out as a known gap only in its run."""
CHECK_DEADLINE_S = 60.0
CHECKS_AT_ONCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one requirement or one attack."""

    suite: Suite
    group: str
    name: str
    status: Status
    seconds: float
    detail: str
    """Why it failed, or why it does not apply; empty if it passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All results, in the order of the suites."""

    backend: str
    isolation: Isolation
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return not self.count("failed")

    def count(self, status: Status) -> int:
        return sum(result.status == status for result in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    suite: Suite
    group: str
    name: str
    excuse: str
    """Why it does not apply to this backend; empty if it does."""
    run: Callable[[], Awaitable[None]]


OnResult = Callable[[CheckResult], None]


async def run_suites(
    backend: SandboxBackend,
    *,
    suites: Iterable[Suite] = SUITES,
    on_result: OnResult,
    checks_at_once: int = CHECKS_AT_ONCE,
    names: Container[str] | None = None,
) -> Report:
    """Run every check, or those with these names; reports each result as it comes.

    Raises:
        UsageError: If Python runs without assertions, which the suites need.
    """
    if not __debug__:
        raise UsageError(
            "the suites are made of assertions, and this Python runs without them",
            hint="leave out `-O` and PYTHONOPTIMIZE",
        )
    found = [check for suite in suites for check in _checks_of(suite, backend)]
    checks = [check for check in found if names is None or check.name in names]
    results: dict[int, CheckResult] = {}
    limiter = anyio.CapacityLimiter(checks_at_once)

    async def run(number: int, check: _Check) -> None:
        async with limiter:
            results[number] = await _result_of(check)
        on_result(results[number])

    async with anyio.create_task_group() as tasks:
        for number, check in enumerate(checks):
            tasks.start_soon(run, number, check)
    return Report(
        backend=backend.name,
        isolation=backend.isolation,
        results=tuple(results[number] for number in range(len(checks))),
    )


def _checks_of(suite: Suite, backend: SandboxBackend) -> list[_Check]:
    if suite == "conformance":
        return [
            _Check(
                suite=suite,
                group=promise.group,
                name=promise.name,
                excuse=promise.excuse(backend) or excuse_of(backend.name, promise.name),
                run=lambda promise=promise: promise(backend),
            )
            for promise in PROMISES
        ]
    return [
        _Check(
            suite=suite,
            group=case.group,
            name=case.name,
            excuse=case.excuse_for(backend.isolation),
            run=lambda case=case: check_case(case, backend),
        )
        for case in CASES
    ]


async def _result_of(check: _Check) -> CheckResult:
    begin = time.monotonic()
    status, detail = ("not_promised", check.excuse) if check.excuse else await _outcome_of(check)
    return CheckResult(
        suite=check.suite,
        group=check.group,
        name=check.name,
        status=status,
        seconds=time.monotonic() - begin,
        detail=detail,
    )


async def _outcome_of(check: _Check) -> tuple[Status, str]:
    with anyio.move_on_after(CHECK_DEADLINE_S):
        try:
            await check.run()
        except KnownGapError as error:
            return "not_promised", f"{NOT_HERE}{error}"
        except Exception as error:  # noqa: BLE001 - an exception of a check is its result
            return "failed", _explain(error)
        return "passed", ""
    return "failed", f"it was not over after {CHECK_DEADLINE_S:g} s"


def _explain(error: BaseException) -> str:
    """Explain an error for the reader of the report."""
    if isinstance(error, BaseExceptionGroup):
        # Type narrowing loses the member types, and exceptions are the only possibility.
        return _explain(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    message = str(error)
    if isinstance(error, AssertionError) and message:
        return message
    if isinstance(error, AssayError) and error.hint:
        message += f" (hint: {error.hint})"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" [{frames[-1].name}, line {frames[-1].lineno}: {frames[-1].line}]" if frames else ""
    return f"{type(error).__name__}: {message}{place}"
