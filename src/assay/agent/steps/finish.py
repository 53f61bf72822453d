"""Build the outcome of a run."""

from collections.abc import Sequence
from dataclasses import replace

from assay.agent.context import StepContext
from assay.agent.state import Attempt, RunState
from assay.contracts.goal import RunResult, Status
from assay.contracts.verdict import Finding, TestResult, TestStatus
from assay.contracts.workspace import changes_between
from assay.text.formatting import count

_NO_CHECK = (
    "nothing can tell whether it is done: there is no check, and the model wrote no test that fails"
    " before the work is done; name a check with --check"
)

_BLIND = (
    "; it failed on the untouched files as well, and only its exit code is known, so failures that "
    "were there before count too"
)


async def end(
    context: StepContext,
    state: RunState,
    accepted: Attempt | None,
    *,
    stopped: str = "",
    early: str = "",
) -> RunState:
    """Build the outcome: the accepted files, or the best attempt and why it is not enough.

    `stopped` names a cap that was reached. `early` is why further attempts would not help.
    """
    chosen = accepted or state.attempt(state.best)
    journal = context.deps.journal
    pristine = context.deps.pristine
    digest = chosen.verdict.tree if accepted and chosen and chosen.verdict else ""
    digest = digest or (chosen.tree if chosen else pristine.digest)
    tree = await journal.load_tree(digest) if chosen else pristine
    status = _status(context, state, accepted, stopped)
    verdict = chosen.verdict if chosen else None
    outcome = RunResult(
        run=context.deps.run,
        status=status,
        grade=verdict.grade if accepted and verdict else None,
        reason=stopped or _reason(state, accepted, status, early),
        attempts=len(state.attempts),
        verdict=verdict,
        test_matrix=state.test_matrix,
        findings=_findings(state),
        changes=changes_between(pristine, tree),
        tree=digest,
        usage=state.usage + context.spent,
        wall_s=context.wall_s,
        withheld=pristine.withheld,
    )
    return replace(state, step=None, round=(), ending=outcome)


def _status(
    context: StepContext, state: RunState, accepted: Attempt | None, stopped: str
) -> Status:
    if accepted:
        return Status.ACCEPTED
    if state.attempts and state.attempts[-1].tampered:
        return Status.TAMPERED
    if not state.best and any(attempt.tampered for attempt in state.attempts):
        return Status.TAMPERED
    if stopped or context.wall_s >= context.deps.spec.limits.wall_s:
        return Status.OUT_OF_BUDGET
    return Status.NOT_ACCEPTED


def _reason(state: RunState, accepted: Attempt | None, status: Status, early: str) -> str:
    if accepted and accepted.verdict:
        return accepted.verdict.reason
    if status is Status.OUT_OF_BUDGET:
        return "the time is used up"
    if status is Status.TAMPERED:
        forged = [f for a in state.attempts for f in a.findings if f.severity == "forgery"]
        return f"it tried to forge its proof: {forged[-1].explanation}"
    blocked = next((each.blocked for each in reversed(state.attempts) if each.blocked), "")
    if blocked:
        return f"the model is blocked: {blocked}"
    return f"{_how_far(state)}; {early}" if early else _how_far(state)


def _how_far(state: RunState) -> str:
    if not state.plan.checks:
        cut = state.plan.unchecked
        return f"{_NO_CHECK}; the model's replies were {cut}" if cut else _NO_CHECK
    best = state.attempt(state.best)
    if best is None or not best.reports:
        complaints = [attempt.complaint for attempt in state.attempts if attempt.complaint]
        last = complaints[-1].splitlines()[0] if complaints else "nothing usable was proposed"
        return f"no attempt of {len(state.attempts)} could be run: {last}"
    if best.verdict is not None:
        return best.verdict.reason
    tests = [test for report in best.reports for test in report.tests]
    if not tests:
        failed = next((report for report in best.reports if not report.passed), None)
        if failed is None:
            return "a check failed"
        # Without names of tests, known failures cannot be left out.
        blind = failed.runner == "command" and bool(state.plan.fails_now)
        return f"{failed.explanation}{_BLIND if blind else ''}"
    attempts = count(len(state.attempts), "attempt")
    known = count(len(state.test_matrix.counted), state.test_matrix.noun)
    return f"{len(best.passed)} of {known} pass in the best of {attempts}{_first_error(tests)}"


def _first_error(tests: Sequence[TestResult]) -> str:
    """Return the error of a test that could not run: a failed import causes all others."""
    for test in tests:
        if test.status is TestStatus.ERROR and test.message:
            hint = (
                "; --package NAME adds a package" if "ModuleNotFoundError" in test.message else ""
            )
            return f"; {test.id}: {test.message}{hint}"
    return ""


def _findings(state: RunState) -> tuple[Finding, ...]:
    found = (finding for attempt in state.attempts for finding in attempt.findings)
    return tuple(dict.fromkeys(found))
