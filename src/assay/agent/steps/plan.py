"""The first step: the checks, the target files and the order of the work.

If the user gave no tests, the agent writes some; they must fail on the original files. A test
that passes before the change would also pass after it.
"""

import ast
import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

from assay.agent.baseline import hanging, trouble_in
from assay.agent.context import StepContext
from assay.agent.edits.apply import WriteFile
from assay.agent.feedback import describe_reports
from assay.agent.prompt_builder import (
    PromptInput,
    first_message,
    prompt,
    room_for_files,
    system,
    user,
)
from assay.agent.reply_parser.parse import understand_text
from assay.agent.snippets import proven_skills
from assay.agent.state import OBSERVATIONS, Plan, RunState
from assay.agent.steps.finish import end
from assay.agent.strategy import first_step
from assay.agent.target_files import find_targets, named_in_words
from assay.contracts.errors import UsageError
from assay.contracts.events import ChecksWritten, Planned
from assay.contracts.goal import RunLimits, RunSpec
from assay.contracts.jsonable import jsonable
from assay.contracts.lessons import RecallQuery, Snippet
from assay.contracts.messages import Message, Reply, Request, StopReason
from assay.contracts.verdict import CheckReport, Grade
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.discovery import checks_for, find_tests
from assay.verify.parse_command import find_deciders, split_command
from assay.verify.runners.registry import choose_runner
from assay.verify.spec import VerificationSpec

_CHANCES: Final = 3
_TOKENS: Final = 1500
_WARMER: Final = 0.3
_FILE: Final = PurePosixPath("test_goal.py")


async def write_checks(sitting: StepContext, plan: Plan, guards: tuple[str, ...]) -> Plan:
    """Ask the model for tests of the goal; without any that fail now, the model judges the output.

    The returned plan has no checks if there is also nothing to run.
    """
    path = _free_name(sitting.parts.pristine)
    messages = _messages(sitting, plan, path)
    for chance in range(1, _CHANCES + 1):
        request = Request(
            messages=messages,
            max_output_tokens=_TOKENS,
            temperature=_WARMER * (chance - 1),
        )
        reply = await sitting.ask(f"checks.{chance}", request, attempt=0, step=chance)
        source = _source(reply, path)
        written = replace(
            plan,
            checks=(f"pytest {path}", *guards),
            protected=(*plan.protected, path),
            most=Grade.CHECKED,
        )
        kept, complaint = await _red(sitting, written, path, source, f"red.{chance}")
        if kept:
            tree = _with_tests(sitting, path, kept)
            sitting.emit(ChecksWritten(paths=(path,), text=kept))
            return replace(written, pristine=await sitting.parts.journal.store_tree(tree))
        # A lone surrogate in a reply cannot be sent back to the model.
        said = reply.message.text.encode(errors="replace").decode()
        messages = (*messages, Message(role="assistant", text=said), user(complaint))
    return _judged_by_model(plan, guards)


def _judged_by_model(plan: Plan, guards: tuple[str, ...]) -> Plan:
    scripts = [path for path in plan.targets if path.suffix == ".py"]
    runs = (shlex.join(("python3", str(scripts[0]))),) if scripts else ()
    return replace(plan, checks=(*runs, *guards), most=Grade.RAN, judged_by_model=True)


def _free_name(tree: Tree) -> PurePosixPath:
    path, number = _FILE, 1
    while path in tree.files:
        number += 1
        path = _FILE.with_stem(f"{_FILE.stem}_{number}")
    return path


def _messages(sitting: StepContext, plan: Plan, path: PurePosixPath) -> tuple[Message, ...]:
    brief = PromptInput(
        statement=sitting.parts.spec.goal,
        tree=sitting.parts.pristine,
        targets=plan.targets,
        equipment=sitting.parts.equipment,
    )
    room = room_for_files(sitting.parts.model.facts)
    first = first_message(brief, max_chars=room)
    return (system(prompt("checks")), user(f"{first}\n\nThe tests go into `{path}`."))


def _source(reply: Reply, path: PurePosixPath) -> str:
    asks = understand_text(
        reply.message.text,
        sole_target=path,
        tools=frozenset(),
        ended=reply.stop_reason is StopReason.ENDED,
    ).asks
    files = [ask.text for ask in asks if isinstance(ask, WriteFile)]
    return files[0] if files else ""


async def _red(
    sitting: StepContext, plan: Plan, path: PurePosixPath, source: str, key: str
) -> tuple[str, str]:
    """Return the tests that fail on the original files, or a complaint for the model."""
    try:
        # This also rejects text with lone surrogates, which no file can hold.
        names = _test_names(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError) as error:
        return "", f"That is not a Python file: {error}. Write the whole test file again."
    if not names:
        return "", "There is no test function in it. Write the whole test file again."
    report = await _report(sitting, plan, _with_tests(sitting, path, source), key)
    passing = {
        test.id.rpartition("::")[2].partition("[")[0] for test in report.tests if test.passed
    }
    if report.passed or passing >= names:
        return "", "These tests pass already, before anything was done. Test what is still missing."
    kept = _without(source, passing)
    return kept, ""


def _with_tests(sitting: StepContext, path: PurePosixPath, source: str) -> Tree:
    return sitting.parts.pristine.with_files({path: TreeFile(source.encode())})


async def _report(sitting: StepContext, plan: Plan, tree: Tree, key: str) -> CheckReport:
    async def really() -> dict[str, object]:
        case = VerificationSpec(pristine=tree, checks=plan.checks[:1], protected=plan.protected)
        observations = await sitting.parts.verifier.run_checks(
            case, tree, on_output=sitting.on_output(0)
        )
        return {"observations": jsonable(observations)}

    kept = await sitting.once(key, really)
    return OBSERVATIONS.validate_python(kept["observations"])[0].report


def _test_names(module: ast.Module) -> set[str]:
    return {
        node.name
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }


def _without(source: str, names: set[str]) -> str:
    """Remove the functions with these names, including their decorators."""
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            del lines[first - 1 : node.end_lineno]
    return "".join(lines)


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
            baseline=_HANGS.format(s=sitting.parts.spec.limits.baseline_timeout_s)
            if plan.hangs
            else "",
        )
    )
    return replace(sitting.state, plan=plan, step=first_step(small=sitting.parts.small))


def case_of(sitting: StepContext, plan: Plan, pristine: Tree) -> VerificationSpec:
    """Return the verification spec of a plan."""
    spec = sitting.parts.spec
    return VerificationSpec(
        pristine=pristine,
        checks=plan.checks,
        protected=plan.protected,
        allowed=spec.allowed,
        most=plan.most,
        check_timeout_s=spec.limits.check_timeout_s,
        baseline_timeout_s=spec.limits.baseline_timeout_s or RunLimits().baseline_timeout_s,
    )


async def _decided(sitting: StepContext) -> Plan:
    parts = sitting.parts
    spec, tree = parts.spec, parts.pristine
    found = find_tests(tree)
    named = _named_in(spec, tree)
    protected = tuple(dict.fromkeys((*spec.protected, *named, *found)))
    targets = find_targets(
        spec.goal, tree, protected=spec.protected or protected, allowed=spec.allowed
    )
    plan = Plan(
        targets=targets,
        protected=protected,
        pristine=await parts.journal.store_tree(tree),
        checks=spec.checks or checks_for(spec.protected, tree) if _decides(sitting) else (),
    )
    if plan.checks:
        return plan
    if found and await _fails_now(sitting, replace(plan, checks=checks_for(found, tree))):
        return replace(plan, checks=checks_for(found, tree))
    # Existing passing tests protect against damage, but do not test the goal.
    guards = checks_for(found, tree) if found else ()
    return await write_checks(sitting, plan, guards)


def _decides(sitting: StepContext) -> bool:
    spec = sitting.parts.spec
    return bool(spec.checks or spec.protected)


def _named_in(spec: RunSpec, tree: Tree) -> tuple[PurePosixPath, ...]:
    """Return the files in check commands, which the agent must not change."""
    named: dict[PurePosixPath, None] = {}
    wanted = named_in_words(spec.goal).union(map(PurePosixPath, spec.allowed))
    for check in spec.checks:
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
    limits = parts.spec.limits

    async def really() -> Mapping[str, Any]:
        case = case_of(sitting, plan, parts.pristine)
        case = replace(case, check_timeout_s=min(case.check_timeout_s, limits.baseline_timeout_s))
        observations = await parts.verifier.run_checks(
            case, parts.pristine, on_output=sitting.on_output(0)
        )
        return {"observations": jsonable(observations)}

    key = hashlib.sha256("\0".join(plan.checks).encode()).hexdigest()[:16]
    kept = await sitting.once(f"baseline:{key}", really)
    reports = tuple(seen.report for seen in OBSERVATIONS.validate_python(kept["observations"]))
    trouble = trouble_in(reports, parts.pristine, parts.spec.goal, workspace=parts.workspace)
    if trouble is not None:
        raise UsageError(
            trouble.message,
            hint=f"{trouble.hint}; --baseline-timeout 0 starts the run without this test",
        )
    return reports


async def _fails_now(sitting: StepContext, plan: Plan) -> bool:
    if not sitting.parts.spec.limits.baseline_timeout_s:
        return True
    return not all(report.passed for report in await _on_untouched(sitting, plan))


async def _with_baseline(sitting: StepContext, plan: Plan) -> Plan:
    """Add the check results of the original files to the plan, for the first attempt."""
    parts = sitting.parts
    # Generated tests ran when they were written.
    own = plan.pristine != parts.pristine.digest
    if plan.judged_by_model or own or not parts.spec.limits.baseline_timeout_s:
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
    cue = RecallQuery(moment="plan", goal=parts.spec.goal)
    return await sitting.lessons(cue, attempt=0, most=_MOST_LESSONS)


async def _steps(sitting: StepContext, plan: Plan) -> tuple[str, ...]:
    """Ask for a plan; small models work better without one."""
    parts = sitting.parts
    if parts.small:
        names = ", ".join(str(path) for path in plan.targets) or "the files of the goal"
        return (f"write {names}", *(f"pass: {check}" for check in plan.checks))
    brief = PromptInput(
        statement=parts.spec.goal,
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
