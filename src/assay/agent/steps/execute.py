"""The fourth step: run the checks on each attempt, for quick feedback but no verdict."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from assay.agent.context import StepContext
from assay.agent.feedback import signatures
from assay.agent.state import OBSERVATIONS, Attempt, RunState
from assay.agent.steps.plan import case_of
from assay.agent.test_matrix import better, row_of
from assay.contracts.events import Executed
from assay.contracts.jsonable import jsonable
from assay.contracts.verdict import TestMatrix
from assay.verify.static_analysis import read_proposal
from assay.verify.verifier import judged_tree


async def execute(sitting: StepContext) -> RunState:
    """Run the checks on all attempts of the round concurrently."""
    state = sitting.state
    done: dict[int, Attempt] = {}

    async def run(attempt: Attempt) -> None:
        done[attempt.number] = attempt if attempt.complaint else await _run(sitting, attempt)

    async with anyio.create_task_group() as tasks:
        for attempt in state.round:
            tasks.start_soon(run, attempt)
    attempts = [done[attempt.number] for attempt in state.round]
    lattice = _extended(state.lattice, attempts)
    for attempt in attempts:
        sitting.emit(
            Executed(
                attempt=attempt.number,
                reports=attempt.reports,
                findings=attempt.found,
                lattice=lattice,
            )
        )
    return replace(state, round=_best_first(attempts), lattice=lattice)


async def _run(sitting: StepContext, attempt: Attempt) -> Attempt:
    earlier = sitting.state.attempt(attempt.repeats) if attempt.repeats else None
    if earlier is not None and earlier.reports:
        # Identical files ran before, so their results are reused.
        return replace(
            attempt, reports=earlier.reports, found=earlier.found, signatures=earlier.signatures
        )
    parts, plan = sitting.parts, sitting.state.plan
    pristine = await parts.journal.load_tree(plan.pristine)
    case = case_of(sitting, plan, pristine)
    # Protected files are restored first, so that the feedback is about what counts.
    tree, findings = judged_tree(case, await parts.journal.load_tree(attempt.tree))
    findings += read_proposal(pristine, tree, plan.protected)

    async def really() -> Mapping[str, Any]:
        observations = await parts.verifier.run_checks(
            case, tree, on_output=sitting.on_output(attempt.number)
        )
        return {"observations": jsonable(observations)}

    kept = await sitting.once(f"executed:{attempt.number}", really)
    observations = OBSERVATIONS.validate_python(kept["observations"])
    reports = tuple(observation.report for observation in observations)
    for observation in observations:
        findings += observation.findings
    return replace(
        attempt,
        reports=reports,
        found=tuple(dict.fromkeys(findings)),
        signatures=tuple(sorted(signatures(reports))),
    )


def _extended(lattice: TestMatrix, attempts: list[Attempt]) -> TestMatrix:
    for attempt in attempts:
        lattice = lattice.with_row(row_of(attempt.number, attempt.reports))
    return lattice


def _best_first(attempts: list[Attempt]) -> tuple[Attempt, ...]:
    """Order the round so that the most promising attempt is verified first."""
    ordered: list[Attempt] = []
    for attempt in attempts:
        place = sum(not better(attempt, other) for other in ordered)
        ordered.insert(place, attempt)
    return tuple(ordered)
