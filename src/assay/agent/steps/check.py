"""The third to fifth step: screen, execute and verify the attempts.

Screening scans the code before it runs. The checks run on each attempt for quick feedback, but
no verdict. The verifier decides about promising attempts in fresh sandboxes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from assay.agent.compaction import cut_off
from assay.agent.context import StepContext
from assay.agent.feedback import signatures
from assay.agent.prompt_builder import prompt, system, user
from assay.agent.state import VERDICT, Attempt, RunState
from assay.agent.strategy import better, row_of
from assay.contracts.events import Executed, Screened, ScreenFinding, Verified
from assay.contracts.jsonable import jsonable
from assay.contracts.messages import Request
from assay.contracts.verdict import Grade, Verdict
from assay.contracts.workspace import changes_between
from assay.text.formatting import trim
from assay.verify.static_analysis import read_proposal
from assay.verify.verifier import judged_tree


async def screen(context: StepContext) -> RunState:
    """Emit the screening findings of each attempt; the policy `block` keeps it from running."""
    if context.deps.screening == "off":
        return context.state
    screened = [await _screened(context, attempt) for attempt in context.state.round]
    return replace(context.state, round=tuple(screened))


async def _screened(context: StepContext, attempt: Attempt) -> Attempt:
    journal = context.deps.journal
    before = await journal.load_tree(context.state.plan.pristine)
    after = await journal.load_tree(attempt.tree)
    findings: list[ScreenFinding] = []
    for change in changes_between(before, after):
        if change.kind == "deleted":
            continue
        now = after.files[change.path].content
        old = before.files.get(change.path)
        found = context.deps.screen(change.path, now)
        known = _flagged(context.deps.screen(change.path, old.content), old.content) if old else ()
        findings.extend(
            finding
            for finding, flagged in zip(found, _flagged(found, now), strict=True)
            if flagged not in known
        )
    blocked = bool(findings) and context.deps.screening == "block"
    context.emit(Screened(attempt=attempt.number, findings=tuple(findings), blocked=blocked))
    if not blocked:
        return attempt
    lines = "\n".join(
        f"- {finding.path}, line {finding.line}: {finding.explanation}" for finding in findings
    )
    return replace(
        attempt, complaint=f"It was not run, because the policy forbids what it does:\n{lines}"
    )


def _flagged(findings: tuple[ScreenFinding, ...], content: bytes) -> list[tuple[str, bytes]]:
    """Return the rule and the text of each flagged line; its number may differ later."""
    lines = content.splitlines()
    return [(found.rule, b"".join(lines[found.line - 1 : found.line])) for found in findings]


async def execute(context: StepContext) -> RunState:
    """Run the checks on all attempts of the round concurrently."""
    state = context.state
    done: dict[int, Attempt] = {}

    async def run(attempt: Attempt) -> None:
        done[attempt.number] = attempt if attempt.complaint else await _run(context, attempt)

    async with anyio.create_task_group() as tasks:
        for attempt in state.round:
            tasks.start_soon(run, attempt)
    attempts = [done[attempt.number] for attempt in state.round]
    test_matrix = state.test_matrix
    for attempt in attempts:
        test_matrix = test_matrix.with_row(row_of(attempt.number, attempt.reports))
    for attempt in attempts:
        context.emit(
            Executed(
                attempt=attempt.number,
                reports=attempt.reports,
                findings=attempt.found,
                test_matrix=test_matrix,
            )
        )
    return replace(state, round=_best_first(attempts), test_matrix=test_matrix)


async def _run(context: StepContext, attempt: Attempt) -> Attempt:
    earlier = context.state.attempt(attempt.repeats) if attempt.repeats else None
    if earlier is not None and earlier.reports:
        # Identical files ran before, so their results are reused.
        return replace(
            attempt, reports=earlier.reports, found=earlier.found, signatures=earlier.signatures
        )
    deps, plan = context.deps, context.state.plan
    pristine = await deps.journal.load_tree(plan.pristine)
    spec = context.verification_spec(plan, pristine)
    # Protected files are restored first, so that the feedback is about what counts.
    tree, findings = judged_tree(spec, await deps.journal.load_tree(attempt.tree))
    findings += read_proposal(pristine, tree, plan.protected)

    key = f"executed:{attempt.number}"
    observations = await context.run_checks(key, spec, tree, attempt=attempt.number)
    observations = await context.leave_out_known_failures(spec, tree, observations)
    reports = tuple(observation.report for observation in observations)
    for observation in observations:
        findings += observation.findings
    return replace(
        attempt,
        reports=reports,
        found=tuple(dict.fromkeys(findings)),
        signatures=tuple(sorted(signatures(reports))),
    )


def _best_first(attempts: list[Attempt]) -> tuple[Attempt, ...]:
    """Order the round so that the most promising attempt is verified first."""
    ordered: list[Attempt] = []
    for attempt in attempts:
        place = sum(not better(attempt, other) for other in ordered)
        ordered.insert(place, attempt)
    return tuple(ordered)


_OUTPUT_CHARS = 6_000


async def verify(context: StepContext) -> RunState:
    """Verify the attempts of the round, the most promising first, until one is accepted."""
    judged: list[Attempt] = []
    for attempt in context.state.round:
        accepted = any(done.verdict and done.verdict.accepted for done in judged)
        # A blocked run pays for no further call, so the model cannot judge its output.
        unjudged = bool(attempt.blocked) and context.state.plan.judged_by_model
        if accepted or not attempt.all_passed or attempt.complaint or unjudged:
            judged.append(attempt)
            continue
        verdict = await _verdict(context, attempt)
        context.emit(Verified(attempt=attempt.number, verdict=verdict))
        judged.append(replace(attempt, verdict=verdict))
    return replace(context.state, round=tuple(judged))


async def _verdict(context: StepContext, attempt: Attempt) -> Verdict:
    async def really() -> Mapping[str, Any]:
        deps, plan = context.deps, context.state.plan
        spec = context.verification_spec(plan, await deps.journal.load_tree(plan.pristine))
        proposal = await deps.journal.load_tree(attempt.tree)
        verdict = await deps.verifier.verify(
            spec, proposal, on_output=context.on_output(attempt.number)
        )
        # Exactly these files are delivered, so they have to be stored.
        judged, _ = judged_tree(spec, proposal)
        await deps.journal.store_tree(judged)
        return jsonable(verdict)

    kept = await context.once(f"verdict:{attempt.number}", really)
    verdict = VERDICT.validate_python(kept)
    if context.state.plan.judged_by_model and verdict.accepted:
        return await _judged(context, attempt, verdict)
    return verdict


async def _judged(context: StepContext, attempt: Attempt, verdict: Verdict) -> Verdict:
    """Ask the model whether the output fits the goal; this gives the lowest grade."""
    output = "\n".join(report.output for report in verdict.reports)
    shown = trim(output, max_chars=_OUTPUT_CHARS)
    question = f"# Goal\n{context.deps.spec.goal}\n\n# Output of the program\n```\n{shown}\n```"
    request = Request(messages=(system(prompt("judge")), user(question)), temperature=0.0)
    said = ""
    for key in (f"judge.{attempt.number}", f"judge.{attempt.number}.2"):
        reply = await context.ask(key, request, attempt=attempt.number, step=0)
        said = " ".join(reply.message.text.split())[:200]
        if said:
            break
    else:
        why = f"its reply was {cut_off(reply) or 'empty'}"
        missing = f"it ran, but the model gave no judgement: {why}"
        return replace(verdict, accepted=False, grade=None, reason=missing)
    if said.upper().lstrip("*`# ").startswith("YES"):
        return replace(verdict, grade=Grade.RAN, reason=f"it ran, and the model judged: {said}")
    return replace(
        verdict, accepted=False, grade=None, reason=f"it ran, but the model judged: {said}"
    )
