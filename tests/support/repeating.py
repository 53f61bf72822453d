"""Runs a shipped suite, and repeats a few failed checks by themselves.

Checks that fill processors or memory can fail where many run side by side on a slow engine. Both
results are shown; a check that fails twice has failed.
"""

import sys

from assay.contracts.ports import SandboxBackend
from assay.selftest.checks import Suite
from assay.selftest.run import CheckResult, Report, run_suites

MOST_REPEATED = 3


async def run_suite(
    backend: SandboxBackend, suite: Suite, *, at_once: int
) -> tuple[Report, list[CheckResult]]:
    """Run one suite; returns its report, and the checks that failed twice or were too many."""
    report = await run_suites(
        backend, suites=[suite], on_result=lambda _: None, checks_at_once=at_once
    )
    failed = [result for result in report.results if result.status == "failed"]
    if not failed or len(failed) > MOST_REPEATED:
        return report, failed
    names = {result.name for result in failed}
    again = await run_suites(
        backend, suites=[suite], on_result=lambda _: None, checks_at_once=1, names=names
    )
    for result in (*failed, *again.results):
        told = f"{backend.name} {result.name}: {result.status} {result.detail}\n"
        sys.__stderr__.write(told)  # type: ignore[union-attr]  # pytest captures the other one
    return report, [result for result in again.results if result.status == "failed"]
