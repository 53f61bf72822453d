"""Runs the shipped suites against a backend and returns the results; the caller presents them."""

import time
import traceback
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Literal, cast

import anyio

from assay.contracts.errors import AssayError, UsageError
from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Check, Suite
from assay.selftest.conformance import REQUIREMENTS
from assay.selftest.programs import KnownGapError
from assay.selftest.security_tests import ATTACKS

SUITES: dict[Suite, tuple[Check, ...]] = {"conformance": REQUIREMENTS, "hostile": ATTACKS}

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
    found = [check for suite in suites for check in SUITES[suite]]
    checks = [check for check in found if names is None or check.name in names]
    results: dict[int, CheckResult] = {}
    limiter = anyio.CapacityLimiter(checks_at_once)

    async def run(number: int, check: Check) -> None:
        async with limiter:
            begin = time.monotonic()
            status, detail = await _outcome_of(check, backend)
        results[number] = CheckResult(
            suite=check.suite,
            group=check.group,
            name=check.name,
            status=status,
            seconds=time.monotonic() - begin,
            detail=detail,
        )
        on_result(results[number])

    async with anyio.create_task_group() as tasks:
        for number, check in enumerate(checks):
            tasks.start_soon(run, number, check)
    return Report(
        backend=backend.name,
        isolation=backend.isolation,
        results=tuple(results[number] for number in range(len(checks))),
    )


async def _outcome_of(check: Check, backend: SandboxBackend) -> tuple[Status, str]:
    if why_not := check.why_not(backend):
        return "not_promised", why_not
    with anyio.move_on_after(CHECK_DEADLINE_S):
        try:
            await check.run(backend)
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
