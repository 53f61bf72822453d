"""The last step of a round: keep the best attempt, store lessons, and continue or end."""

from dataclasses import replace

from assay.agent.context import StepContext
from assay.agent.snippets import judge_snippets, keep_snippets
from assay.agent.state import Attempt, NextAction, RunState
from assay.agent.steps.code import mixtures
from assay.agent.steps.finish import end
from assay.agent.strategy import (
    better,
    complements,
    next_step,
    repeats_without_progress,
)
from assay.contracts.events import BudgetUsed, Reflected, RolledBack
from assay.contracts.lessons import Failure
from assay.contracts.workspace import Tree
from assay.text.diffs import unified_diff

_ACTION_CHARS = 4_000


async def reflect(context: StepContext) -> RunState:
    """Close the round; the returned state has either a next action or an outcome."""
    state = context.state
    for attempt in sorted(state.round, key=lambda attempt: attempt.number):
        await _judge_lessons(context, state, attempt)
        state = _ratcheted(context, state, attempt)
    state = _lightened(replace(state, round=()))
    used = _share_used(context, state)
    context.emit(
        BudgetUsed(
            usage=state.usage + context.spent,
            attempts=len(state.attempts),
            wall_s=context.wall_s,
            share=min(1.0, used),
        )
    )
    accepted = [a for a in state.attempts if a.verdict is not None and a.verdict.accepted]
    early = "" if accepted or used >= 1.0 else _reason_to_end(context, state)
    over = bool(accepted or early) or used >= 1.0
    await _learn(context, state, accepted[0] if accepted else None, over=over)
    if over:
        return await end(context, state, accepted[0] if accepted else None, early=early)
    last = state.attempts[-1]
    step = next_step(
        state.attempts,
        state.best,
        context.deps.spec.limits,
        small=context.deps.small,
        partners=await _partners(context, state),
    )
    context.emit(
        Reflected(attempt=last.number, lesson=_lesson(state, last, step), next_action=step.action)
    )
    return replace(state, step=step)


def _reason_to_end(context: StepContext, state: RunState) -> str:
    """Return why a further attempt would only cost money; empty if it may help."""
    if any(attempt.blocked for attempt in state.attempts):
        return "the model is blocked"
    if cut := state.attempts[-1].cut_off:
        settings = f'[models."{context.deps.model.name}"]'
        return (
            f"the model's replies were {cut}; {settings} sets max_output_tokens and "
            "reasoning_effort"
        )
    limits = context.deps.spec.limits
    # Small models are sampled: their next sample may differ.
    if context.deps.small or not repeats_without_progress(state.attempts, limits):
        return ""
    if state.attempts[-1].tree == state.plan.pristine:
        return "two attempts in a row changed no file"
    return "two attempts in a row gave the same files"


async def _partners(context: StepContext, state: RunState) -> tuple[int, ...]:
    """Return the attempts with functions that the best one lacks."""
    best = state.attempt(state.best)
    if best is None or not context.deps.small:
        return ()
    tree = await context.deps.journal.load_tree(best.tree)
    found: list[int] = []
    for number in complements(state.attempts, state.best):
        other = state.attempt(number)
        if other is not None:
            partner = await context.deps.journal.load_tree(other.tree)
            if any(True for _ in mixtures(tree, partner, state.plan.targets)):
                found.append(number)
    return tuple(found)


async def _judge_lessons(context: StepContext, state: RunState, attempt: Attempt) -> None:
    """Record for each lesson in the prompt whether the attempt improved with it."""
    if attempt.lesson_ids and attempt.reports and not attempt.tampered:
        helped = attempt.all_passed or better(attempt, state.attempt(state.best))
        await context.deps.memory.judge(attempt.lesson_ids, helped=helped)


def _ratcheted(context: StepContext, state: RunState, attempt: Attempt) -> RunState:
    """Add a completed attempt, and emit an event if it lost tests of the best one."""
    best = state.attempt(state.best) if state.best else None
    attempts = (*state.attempts, attempt)
    if better(attempt, best):
        return replace(state, attempts=attempts, best=attempt.number)
    if best is not None and attempt.reports:
        broke = best.passed - attempt.passed
        if broke:
            context.emit(
                RolledBack(
                    attempt=attempt.number, to_attempt=best.number, broke=tuple(sorted(broke))
                )
            )
    return replace(state, attempts=attempts)


def _lightened(state: RunState) -> RunState:
    """Drop messages that no repair will continue, since every step writes the state."""
    kept = {state.best, state.attempts[-1].number if state.attempts else 0}
    attempts = tuple(
        attempt if attempt.number in kept else replace(attempt, context=())
        for attempt in state.attempts
    )
    return replace(state, attempts=attempts)


def _share_used(context: StepContext, state: RunState) -> float:
    limits = context.deps.spec.limits
    return max(len(state.attempts) / limits.attempts, context.wall_s / limits.wall_s)


def _lesson(state: RunState, last: Attempt, step: NextAction) -> str:
    if last.complaint:
        return last.complaint.splitlines()[0]
    if last.repeats and last.tree != state.plan.pristine:
        return f"the same files as in attempt {last.repeats}: another way is needed"
    if last.tampered:
        return "; ".join(finding.explanation for finding in last.findings)
    if last.verdict is not None:
        return last.verdict.reason
    failing = [test for report in last.reports for test in report.tests if not test.passed]
    count = f"{len(failing)} of {len(failing) + len(last.passed)} tests fail"
    cause = (
        failing[0].message
        if failing
        else next((report.explanation for report in last.reports if not report.passed), "")
    )
    if last.tree == state.plan.pristine:
        return (
            f"it changed no file; {count}: {cause}" if failing else f"it changed no file; {cause}"
        )
    again = "; the same as before" if _same_as_before(state) and step.action == "fresh" else ""
    return f"{count}{again}: {cause}" if failing else cause


def _same_as_before(state: RunState) -> bool:
    return (
        len(state.attempts) > 1 and state.attempts[-1].signatures == state.attempts[-2].signatures
    )


async def _learn(
    context: StepContext, state: RunState, accepted: Attempt | None, *, over: bool
) -> None:
    """Store failures and snippets after the round's result is known.

    A run with a forged attempt stores nothing.
    """
    deps = context.deps
    if deps.memory_use == "off" or any(attempt.tampered for attempt in state.attempts):
        return
    if not over:
        return
    end_tree = await deps.journal.load_tree(accepted.tree) if accepted else None
    for attempt in state.attempts:
        if not attempt.signatures or (accepted and attempt.number == accepted.number):
            continue
        tree = await deps.journal.load_tree(attempt.tree)
        fix = unified_diff(tree, end_tree, max_chars=_ACTION_CHARS) if end_tree else ""
        await deps.memory.learn(_failure(context, attempt, tree, fix))
    await judge_snippets(context, state, accepted)
    if accepted is not None:
        await keep_snippets(context, accepted)


def _failure(context: StepContext, attempt: Attempt, tree: Tree, fix: str) -> Failure:
    failing = [test for report in attempt.reports for test in report.tests if not test.passed]
    message = failing[0].message if failing else attempt.reports[0].explanation
    targets = context.state.plan.targets
    action = "\n".join(tree.text(path) or "" for path in targets)[:_ACTION_CHARS]
    return Failure(
        goal=context.deps.spec.goal,
        signature=attempt.signatures[0],
        message=message,
        action=action,
        language=targets[0].suffix.lstrip(".") if targets else "",
        fix=fix,
        run=context.deps.run,
    )
