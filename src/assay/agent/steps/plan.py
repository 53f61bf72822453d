"""The first step: the checks, the target files and the order of the work."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

from assay.agent.baseline import hanging, trouble_in
from assay.agent.context import StepContext
from assay.agent.feedback import describe_reports
from assay.agent.generated_tests import write_checks
from assay.agent.prompt_builder import (
    PromptInput,
    first_message,
    prompt,
    room_for_files,
    system,
    user,
)
from assay.agent.snippets.trial import proven_skills
from assay.agent.state import OBSERVATIONS, Plan, RunState
from assay.agent.steps.finish import end
from assay.agent.strategy import first_step
from assay.agent.target_files import find_targets, named_in_words
from assay.contracts.errors import UsageError
from assay.contracts.events import Planned
from assay.contracts.goal import Goal, RunLimits
from assay.contracts.jsonable import jsonable
from assay.contracts.lessons import RecallQuery, Snippet
from assay.contracts.messages import Request
from assay.contracts.verdict import CheckReport
from assay.contracts.workspace import Tree
from assay.verify.commands import checks_for, choose_runner, find_tests, split_command
from assay.verify.protected_files import find_deciders
from assay.verify.spec import VerificationSpec

_STEP: Final = re.compile(r"^\s*(?:\d+[.)]|[-*])\s+(.+)$", re.MULTILINE)
_MOST_STEPS: Final = 6
_MOST_LESSONS: Final = 3
_PLAN_TOKENS: Final = 600
_TROUBLE_CHARS: Final = 3_000
_HANGS: Final = (
    "a check does not end within {s:g} s on the untouched files; if it is only slow, "
    "--baseline-timeout gives it more time"
)


async def make_plan(sitting: StepContext) -> RunState:
    """Determine the checks; if there are none, ask the model for tests that fail now.

    Without any check the run ends here, because no attempt could be accepted.
    """
    plan = await _decided(sitting)
    if not plan.checks:
        return await end(sitting, replace(sitting.state, plan=plan), None)
    plan = await _with_baseline(sitting, plan)
    lessons = await _lessons(sitting)
    ids = tuple(sitting.shown.get(0, ()))
    plan = replace(plan, lessons=lessons, lesson_ids=ids, skills=await _skills(sitting, plan))
    plan = replace(plan, steps=await _steps(sitting, plan))
    sitting.emit(
        Planned(
            steps=plan.steps,
            targets=plan.targets,
            checks=plan.checks,
            lessons=lessons,
            skills=tuple(name for skill in plan.skills for name in skill.names),
            baseline=_HANGS.format(s=sitting.parts.goal.effort.baseline_s) if plan.hangs else "",
        )
    )
    return replace(sitting.state, plan=plan, step=first_step(small=sitting.parts.small))


def case_of(sitting: StepContext, plan: Plan, pristine: Tree) -> VerificationSpec:
    """Return the verification spec of a plan."""
    goal = sitting.parts.goal
    return VerificationSpec(
        pristine=pristine,
        checks=plan.checks,
        protected=plan.protected,
        allowed=goal.allowed,
        most=plan.most,
        check_s=goal.effort.check_s,
        baseline_s=goal.effort.baseline_s or RunLimits().baseline_s,
    )


async def _decided(sitting: StepContext) -> Plan:
    parts = sitting.parts
    goal, tree = parts.goal, parts.pristine
    given = goal.acceptance
    found = find_tests(tree)
    named = _named_in(goal, tree)
    protected = tuple(dict.fromkeys((*given.protected, *named, *found)))
    targets = find_targets(
        goal.statement, tree, protected=given.protected or protected, allowed=goal.allowed
    )
    plan = Plan(
        targets=targets,
        protected=protected,
        pristine=await parts.journal.store_tree(tree),
        checks=given.checks or checks_for(given.protected, tree) if _decides(sitting) else (),
    )
    if plan.checks:
        return plan
    if found and await _fails_now(sitting, replace(plan, checks=checks_for(found, tree))):
        return replace(plan, checks=checks_for(found, tree))
    # Existing passing tests protect against damage, but do not test the goal.
    guards = checks_for(found, tree) if found else ()
    return await write_checks(sitting, plan, guards)


def _decides(sitting: StepContext) -> bool:
    given = sitting.parts.goal.acceptance
    return bool(given.checks or given.protected)


def _named_in(goal: Goal, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the files in check commands, which the agent must not change."""
    named: dict[PurePosixPath, None] = {}
    wanted = named_in_words(goal.statement).union(map(PurePosixPath, goal.allowed))
    for check in goal.acceptance.checks:
        words = (PurePosixPath(word.partition("::")[0]) for word in split_command(check))
        named.update(dict.fromkeys(path for path in words if path in tree.files))
        deciding = find_deciders(check, tree, wanted=wanted)
        # Known test runners protect their files themselves.
        known = choose_runner(split_command(check, tree)).name != "command"
        named.update({p: None for p in deciding if not (known and p.name == "package.json")})
    return tuple(named)


async def _on_untouched(sitting: StepContext, plan: Plan) -> tuple[CheckReport, ...]:
    """Run the checks on the original files, within the time limit for this.

    Raises:
        UsageError: If the environment prevents a check from ever passing.
    """
    parts = sitting.parts
    effort = parts.goal.effort

    async def really() -> Mapping[str, Any]:
        case = case_of(sitting, plan, parts.pristine)
        case = replace(case, check_s=min(case.check_s, effort.baseline_s))
        observations = await parts.verifier.run_checks(
            case, parts.pristine, on_output=sitting.on_output(0)
        )
        return {"observations": jsonable(observations)}

    key = hashlib.sha256("\0".join(plan.checks).encode()).hexdigest()[:16]
    kept = await sitting.once(f"baseline:{key}", really)
    reports = tuple(seen.report for seen in OBSERVATIONS.validate_python(kept["observations"]))
    trouble = trouble_in(reports, parts.pristine, parts.goal.statement, workspace=parts.workspace)
    if trouble is not None:
        raise UsageError(
            trouble.message,
            hint=f"{trouble.hint}; --baseline-timeout 0 starts the run without this test",
        )
    return reports


async def _fails_now(sitting: StepContext, plan: Plan) -> bool:
    if not sitting.parts.goal.effort.baseline_s:
        return True
    return not all(report.passed for report in await _on_untouched(sitting, plan))


async def _with_baseline(sitting: StepContext, plan: Plan) -> Plan:
    """Add the check results of the original files to the plan, for the first attempt."""
    parts = sitting.parts
    # Generated tests ran when they were written.
    own = plan.pristine != parts.pristine.digest
    if plan.judged_by_model or own or not parts.goal.effort.baseline_s:
        return plan
    reports = await _on_untouched(sitting, plan)
    hangs = hanging(reports)
    if all(report.passed for report in reports):
        return plan
    if not hangs and not any(path in parts.pristine.files for path in plan.targets):
        return plan
    said = describe_reports(reports, before=None, max_chars=_TROUBLE_CHARS)
    if hangs:
        said = f"The check hangs on the untouched files.\n{said}"
    return replace(plan, fails_now=said, hangs=bool(hangs))


async def _skills(sitting: StepContext, plan: Plan) -> tuple[Snippet, ...]:
    return await proven_skills(sitting, plan) if _remembers(sitting) else ()


def _remembers(sitting: StepContext) -> bool:
    return sitting.parts.memory_use in {"plan", "all"}


async def _lessons(sitting: StepContext) -> tuple[str, ...]:
    parts = sitting.parts
    if not _remembers(sitting):
        return ()
    cue = RecallQuery(moment="plan", goal=parts.goal.statement)
    return await sitting.lessons(cue, attempt=0, most=_MOST_LESSONS)


async def _steps(sitting: StepContext, plan: Plan) -> tuple[str, ...]:
    """Ask for a plan; small models work better without one."""
    parts = sitting.parts
    if parts.small:
        names = ", ".join(str(path) for path in plan.targets) or "the files of the goal"
        return (f"write {names}", *(f"pass: {check}" for check in plan.checks))
    brief = PromptInput(
        statement=parts.goal.statement,
        tree=parts.pristine,
        targets=plan.targets,
        tests=plan.protected,
        equipment=parts.equipment,
    )
    request = Request(
        messages=(
            system(prompt("plan")),
            user(first_message(brief, max_chars=room_for_files(parts.model.facts))),
        ),
        max_output_tokens=_PLAN_TOKENS,
    )
    reply = await sitting.ask("plan", request, attempt=0, step=1)
    return tuple(_STEP.findall(reply.message.text)[:_MOST_STEPS])
