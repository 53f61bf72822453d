"""The first step: the checks, the target files and the order of the work.

If the user gave no tests, the agent writes some; they must fail on the original files. A test
that passes before the change would also pass after it.
"""

import ast
import shlex
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from assay.agent.baseline import failing_before, hanging, trouble_in
from assay.agent.compaction import cut_off
from assay.agent.context import StepContext
from assay.agent.edits.apply import WriteFile
from assay.agent.feedback import describe_reports, first_failing
from assay.agent.prompt_builder import (
    prompt,
    system,
    user,
)
from assay.agent.reply_parser.parse import steps_in, understand_text
from assay.agent.snippets import proven_snippets
from assay.agent.state import Plan, RunState
from assay.agent.steps.finish import end
from assay.agent.strategy import first_step
from assay.agent.target_files import find_imported, find_targets, named_in_words
from assay.contracts.errors import UsageError
from assay.contracts.events import ChecksWritten
from assay.contracts.goal import RunSpec
from assay.contracts.lessons import RecallQuery
from assay.contracts.messages import Message, Reply, Request, StopReason
from assay.contracts.verdict import CheckReport, Grade
from assay.contracts.workspace import Tree, TreeFile
from assay.verify.discovery import checks_for, find_tests
from assay.verify.parse_command import find_deciders, split_command
from assay.verify.runners.registry import choose_runner
from assay.verify.spec import VerificationSpec

_CHANCES: Final = 3
_WARMER: Final = 0.3
_FILE: Final = PurePosixPath("test_goal.py")


async def write_checks(context: StepContext, plan: Plan, guards: tuple[str, ...]) -> Plan:
    """Ask the model for tests of the goal; without any that fail now, the model judges the output.

    The returned plan has no checks if there is also nothing to run.
    """
    path = _free_name(context.deps.pristine)
    messages = _messages(context, plan, path)
    cut = ""
    for chance in range(1, _CHANCES + 1):
        request = Request(messages=messages, temperature=_WARMER * (chance - 1))
        reply = await context.ask(f"checks.{chance}", request, attempt=0, step=chance)
        source = _source(reply, path)
        written = replace(
            plan,
            checks=(f"pytest {path}", *guards),
            protected=(*plan.protected, path),
            most=Grade.CHECKED,
        )
        kept, complaint = await _red(context, written, path, source, f"red.{chance}")
        if cut := cut_off(reply):
            complaint = f"Your reply was {cut}. {complaint}"
        if kept:
            tree = _with_tests(context, path, kept)
            context.emit(ChecksWritten(paths=(path,), text=kept))
            return replace(written, pristine=await context.deps.journal.store_tree(tree))
        # A lone surrogate in a reply cannot be sent back to the model.
        said = reply.message.text.encode(errors="replace").decode()
        messages = (*messages, Message(role="assistant", text=said), user(complaint))
    return replace(_judged_by_model(plan, guards), unchecked=cut)


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


def _messages(context: StepContext, plan: Plan, path: PurePosixPath) -> tuple[Message, ...]:
    first = context.first_message(Plan(targets=plan.targets), context.deps.pristine)
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
    context: StepContext, plan: Plan, path: PurePosixPath, source: str, key: str
) -> tuple[str, str]:
    """Return the tests that fail on the original files, or a complaint for the model."""
    try:
        # This also rejects text with lone surrogates, which no file can hold.
        names = _test_names(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError) as error:
        return "", f"That is not a Python file: {error}. Write the whole test file again."
    if not names:
        return "", "There is no test function in it. Write the whole test file again."
    tree = _with_tests(context, path, source)
    spec = VerificationSpec(pristine=tree, checks=plan.checks[:1], protected=plan.protected)
    report = (await context.run_checks(key, spec, tree, attempt=0))[0].report
    passing = {
        test.id.rpartition("::")[2].partition("[")[0] for test in report.tests if test.passed
    }
    if report.passed or passing >= names:
        return "", "These tests pass already, before anything was done. Test what is still missing."
    kept = _without(source, passing)
    return kept, ""


def _with_tests(context: StepContext, path: PurePosixPath, source: str) -> Tree:
    return context.deps.pristine.with_files({path: TreeFile(source.encode())})


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


_MOST_LESSONS: Final = 3
_MOST_RELATED: Final = 40
_TROUBLE_CHARS: Final = 3_000


async def make_plan(context: StepContext) -> RunState:
    """Determine the checks; if there are none, ask the model for tests that fail now.

    Without any check the run ends here, because no attempt could be accepted.
    """
    plan = await _decided(context)
    if not plan.checks:
        return await end(context, replace(context.state, plan=plan), None)
    plan = await _with_baseline(context, plan)
    plan = replace(plan, steps=await _steps(context, plan))
    if context.deps.memory_use in {"plan", "all"}:
        query = RecallQuery(moment="plan", goal=context.deps.spec.goal)
        lessons = await context.lessons(query, attempt=0, most=_MOST_LESSONS)
        ids = tuple(context.shown.get(0, ()))
        snippets = await proven_snippets(context, plan)
        plan = replace(plan, lessons=lessons, lesson_ids=ids, snippets=snippets)
    context.emit_plan(plan)
    return replace(context.state, plan=plan, step=first_step(small=context.deps.small))


async def _decided(context: StepContext) -> Plan:
    deps = context.deps
    spec, tree = deps.spec, deps.pristine
    found = find_tests(tree)
    named = _named_in(spec, tree)
    protected = tuple(dict.fromkeys((*spec.protected, *named, *found)))
    tests = spec.protected or tuple(path for path in named if path in found) or protected
    targets = find_targets(
        spec.goal,
        tree,
        tests=tests,
        protected=protected,
        allowed=spec.allowed,
        guess=deps.small,
    )
    plan = Plan(
        targets=targets,
        related=find_imported(tests, tree)[:_MOST_RELATED],
        protected=protected,
        pristine=await deps.journal.store_tree(tree),
        checks=spec.checks or checks_for(spec.protected, tree, required=spec.required)
        if _decides(context)
        else (),
    )
    if plan.checks:
        return plan
    if found and await _fails_now(context, replace(plan, checks=checks_for(found, tree))):
        return replace(plan, checks=checks_for(found, tree))
    # Existing passing tests protect against damage, but do not test the goal.
    guards = checks_for(found, tree) if found else ()
    return await write_checks(context, plan, guards)


def _decides(context: StepContext) -> bool:
    spec = context.deps.spec
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


async def _on_untouched(context: StepContext, plan: Plan) -> tuple[CheckReport, ...]:
    """Run the checks on the original files, within the time limit for this.

    Raises:
        UsageError: If the environment prevents a check from ever passing.
    """
    deps = context.deps
    spec = context.verification_spec(plan, deps.pristine)
    observations = await context.run_baseline(spec, plan.checks)
    reports = tuple(seen.report for seen in observations)
    trouble = trouble_in(
        reports,
        deps.pristine,
        deps.spec.goal,
        workspace=deps.workspace,
        given=_decides(context),
    )
    if trouble is not None:
        raise UsageError(
            trouble.message,
            hint=f"{trouble.hint}; --baseline-timeout 0 starts the run without this test",
        )
    return reports


async def _fails_now(context: StepContext, plan: Plan) -> bool:
    if not context.deps.spec.limits.baseline_timeout_s:
        return True
    return not all(report.passed for report in await _on_untouched(context, plan))


async def _with_baseline(context: StepContext, plan: Plan) -> Plan:
    """Add the check results of the original files to the plan, for the first attempt."""
    deps = context.deps
    # Generated tests ran when they were written.
    own = plan.pristine != deps.pristine.digest
    if plan.judged_by_model or own or not deps.spec.limits.baseline_timeout_s:
        return plan
    reports = await _on_untouched(context, plan)
    hangs = hanging(reports)
    if all(report.passed for report in reports):
        return plan
    exists = any(path in deps.pristine.files for path in plan.targets)
    if deps.small and not hangs and not exists:
        # Before its file exists, a failure tells a small model nothing.
        return plan
    said = describe_reports(reports, before=None, max_chars=_TROUBLE_CHARS)
    if hangs:
        said = f"The check hangs on the untouched files.\n{said}"
    unfixable = dict(failing_before(reports, deps.pristine, deps.spec.goal))
    remark = ""
    if unfixable:
        hints = dict.fromkeys(trouble.hint for trouble in unfixable.values())
        remark = f"failing before, and not counted: {', '.join(unfixable)} ({'; '.join(hints)})"
        said = f"These cannot pass here and do not count: {', '.join(unfixable)}.\n{said}"
    return replace(
        plan, fails_now=said, failing=first_failing(reports), hangs=bool(hangs), remark=remark
    )


async def _steps(context: StepContext, plan: Plan) -> tuple[str, ...]:
    """Ask for a plan; small models work better without one.

    A model with tools states its plan in its first reply, in the same message history.
    """
    deps = context.deps
    if deps.model.info.tool_calls and not deps.small:
        return ()
    if deps.small:
        names = ", ".join(str(path) for path in plan.targets) or "the files of the goal"
        return (f"write {names}", *(f"pass: {check}" for check in plan.checks))
    request = Request(
        messages=(
            system(prompt("plan")),
            user(context.first_message(plan, await deps.journal.load_tree(plan.pristine))),
        ),
    )
    reply = await context.ask("plan", request, attempt=0, step=1)
    return steps_in(reply.message.text)
