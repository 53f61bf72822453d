"""The third step: screening scans the code of each attempt before it runs."""

from dataclasses import replace

from assay.agent.context import StepContext
from assay.agent.state import Attempt, RunState
from assay.contracts.events import Screened, ScreenFinding
from assay.contracts.workspace import changes_between


async def screen(sitting: StepContext) -> RunState:
    """Emit the screening findings of each attempt; the policy `block` keeps it from running."""
    if sitting.parts.policy == "off":
        return sitting.state
    screened = [await _screened(sitting, attempt) for attempt in sitting.state.round]
    return replace(sitting.state, round=tuple(screened))


async def _screened(sitting: StepContext, attempt: Attempt) -> Attempt:
    journal = sitting.parts.journal
    before = await journal.load_tree(sitting.state.plan.pristine)
    after = await journal.load_tree(attempt.tree)
    findings: list[ScreenFinding] = []
    for change in changes_between(before, after):
        if change.kind != "deleted":
            findings.extend(sitting.parts.screen(change.path, after.files[change.path].content))
    blocked = bool(findings) and sitting.parts.policy == "block"
    sitting.emit(Screened(attempt=attempt.number, findings=tuple(findings), blocked=blocked))
    if not blocked:
        return attempt
    lines = "\n".join(
        f"- {finding.path}, line {finding.line}: {finding.explanation}" for finding in findings
    )
    return replace(
        attempt, complaint=f"It was not run, because the policy forbids what it does:\n{lines}"
    )
