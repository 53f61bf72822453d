"""The fifth step: verify promising attempts in fresh sandboxes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from assay.agent.context import StepContext
from assay.agent.prompt_builder import prompt, system, user
from assay.agent.state import VERDICT, Attempt, RunState
from assay.agent.steps.plan import case_of
from assay.contracts.events import Verified
from assay.contracts.jsonable import jsonable
from assay.contracts.messages import Request
from assay.contracts.verdict import Grade, Verdict
from assay.text.truncate import trim
from assay.verify.verifier import judged_tree

_JUDGEMENT_TOKENS = 120
_OUTPUT_CHARS = 6_000


async def verify(sitting: StepContext) -> RunState:
    """Verify the attempts of the round, the most promising first, until one is accepted."""
    judged: list[Attempt] = []
    for attempt in sitting.state.round:
        accepted = any(done.verdict and done.verdict.accepted for done in judged)
        if accepted or not attempt.all_passed or attempt.complaint:
            judged.append(attempt)
            continue
        verdict = await _verdict(sitting, attempt)
        sitting.emit(Verified(attempt=attempt.number, verdict=verdict))
        judged.append(replace(attempt, verdict=verdict))
    return replace(sitting.state, round=tuple(judged))


async def _verdict(sitting: StepContext, attempt: Attempt) -> Verdict:
    async def really() -> Mapping[str, Any]:
        parts, plan = sitting.parts, sitting.state.plan
        case = case_of(sitting, plan, await parts.journal.load_tree(plan.pristine))
        proposal = await parts.journal.load_tree(attempt.tree)
        verdict = await parts.verifier.verify(
            case, proposal, on_output=sitting.on_output(attempt.number)
        )
        # Exactly these files are delivered, so they have to be stored.
        judged, _ = judged_tree(case, proposal)
        await parts.journal.store_tree(judged)
        return jsonable(verdict)

    kept = await sitting.once(f"verdict:{attempt.number}", really)
    verdict = VERDICT.validate_python(kept)
    if sitting.state.plan.judged_by_model and verdict.accepted:
        return await _judged(sitting, attempt, verdict)
    return verdict


async def _judged(sitting: StepContext, attempt: Attempt, verdict: Verdict) -> Verdict:
    """Ask the model whether the output fits the goal; this gives the lowest grade."""
    output = "\n".join(report.output for report in verdict.reports)
    shown = trim(output, max_chars=_OUTPUT_CHARS)
    question = (
        f"# Goal\n{sitting.parts.goal.statement}\n\n# Output of the program\n```\n{shown}\n```"
    )
    request = Request(
        messages=(system(prompt("judge")), user(question)),
        max_output_tokens=_JUDGEMENT_TOKENS,
        temperature=0.0,
    )
    reply = await sitting.ask(f"judge.{attempt.number}", request, attempt=attempt.number, step=0)
    said = " ".join(reply.message.text.split())[:200]
    if said.upper().lstrip("*`# ").startswith("YES"):
        return replace(verdict, grade=Grade.RAN, reason=f"it ran, and the model judged: {said}")
    return replace(
        verdict, accepted=False, grade=None, reason=f"it ran, but the model judged: {said}"
    )
