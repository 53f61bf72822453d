"""The second step: make one attempt, or several concurrently.

The model writes the attempt with a strategy of `agent.strategies`. Two kinds change single
functions. A repair has a small model rewrite one function, with one failing test in the prompt.
A crossover combines functions of two attempts without the model: two samples often fail
different tests, and trying a combination costs a test run and no token.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.agent.context import StepContext
from assay.agent.feedback import describe_reports
from assay.agent.prompt_builder import fenced, prompt, system, user
from assay.agent.state import Attempt, NextAction, RunState
from assay.agent.strategies.tool_loop import work_on
from assay.agent.strategies.whole_file import write_directly
from assay.agent.strategy import statuses_of
from assay.agent.target_files import source_of
from assay.contracts.errors import AssayError, ModelRefusedError
from assay.contracts.events import AttemptStarted, FilesChanged
from assay.contracts.lessons import RecallQuery
from assay.contracts.messages import Message, Request
from assay.contracts.verdict import TestResult
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.text.diffs import unified_diff
from assay.text.formatting import cut_middle, trim
from assay.verify.verifier import judged_tree

_MOST: Final = 6
"""Combinations to try for one pair of attempts."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


async def recombine(context: StepContext, number: int, step: NextAction, *, tree: Tree) -> Attempt:
    """Try combinations of two attempts, and return the one that passes most tests."""
    journal, state = context.deps.journal, context.state
    other = state.attempt(step.other)
    best, most = tree, -1
    if other is not None:
        partner = await journal.load_tree(other.tree)
        mixed = islice(mixtures(tree, partner, state.plan.targets), _MOST)
        for place, mixture in enumerate(mixed, 1):
            passed = await _passed(context, mixture, f"mixed:{number}.{place}", number)
            if passed > most:
                best, most = mixture, passed
    digest = await journal.store_tree(best)
    return Attempt(number=number, action=step.action, tree=digest, base=step.base, other=step.other)


async def _passed(context: StepContext, tree: Tree, key: str, number: int) -> int:
    pristine = await context.deps.journal.load_tree(context.state.plan.pristine)
    spec = context.verification_spec(context.state.plan, pristine)
    judged, _ = judged_tree(spec, tree)
    observations = await context.run_checks(key, spec, judged, attempt=number)
    return sum(test.passed for seen in observations for test in seen.report.tests)


def mixtures(one: Tree, other: Tree, paths: tuple[PurePosixPath, ...]) -> Iterator[Tree]:
    """Yield the first tree with one function, or all but one, taken from the second."""
    for path in paths:
        mine, theirs = one.text(path), other.text(path)
        if path.suffix != ".py" or mine is None or theirs is None:
            continue
        for text in mixed_sources(mine, theirs):
            yield one.with_files({path: TreeFile(text.encode(), one.files[path].executable)})


def mixed_sources(mine: str, theirs: str) -> Iterator[str]:
    """Yield combinations of two modules that define some functions differently."""
    try:
        ours, others = functions_of(ast.parse(mine)), functions_of(ast.parse(theirs))
    except (SyntaxError, ValueError, RecursionError):
        return
    differing = [
        name for name in ours if name in others and ast.dump(ours[name]) != ast.dump(others[name])
    ]
    choices = [{name} for name in differing]
    if len(differing) > 2:  # noqa: PLR2004 - of two, all but one is one
        choices += [set(differing) - {name} for name in differing]
    for chosen in choices:
        if chosen != set(differing) or len(ours) > len(differing):
            yield _replaced(mine, theirs, {name: (ours[name], others[name]) for name in chosen})


def functions_of(module: ast.Module) -> dict[str, Function]:
    """Return the functions and methods of a module by name."""
    found: dict[str, Function] = {}
    for node in module.body:
        if isinstance(node, Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, Function):
                    found[f"{node.name}.{inner.name}"] = inner
    return found


def _replaced(mine: str, theirs: str, pairs: Mapping[str, tuple[Function, Function]]) -> str:
    lines, other_lines = mine.splitlines(), theirs.splitlines()
    # Last first, so that earlier line numbers stay valid.
    for old, new in sorted(pairs.values(), key=lambda pair: -pair[0].lineno):
        first, last = span_of(old)
        lines[first:last] = other_lines[slice(*span_of(new))]
    missing = [line for line in _imports(theirs) if line not in _imports(mine)]
    return "\n".join([*missing, *lines]) + "\n"


def span_of(node: Function) -> tuple[int, int]:
    """Return the line range of a function with its decorators, as slice bounds."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first - 1, node.end_lineno or node.lineno


def _imports(source: str) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


_DETAIL_CHARS: Final = 800
_FENCE: Final = re.compile(r"```(?:python)?\n(.*?)(?:\n```|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A function that a failing test points to."""

    path: PurePosixPath
    name: str
    """Including the name of its class."""
    test: TestResult
    test_source: str


async def repair_function(
    context: StepContext, number: int, step: NextAction, *, tree: Tree
) -> Attempt | None:
    """Have one function of the best attempt rewritten; None if no failing test points to one."""
    earlier = context.state.attempt(step.base)
    suspects = _suspects(context, earlier, tree) if earlier else []
    if not suspects:
        return None
    suspect = suspects[number % len(suspects)]
    simple = suspect.name.rpartition(".")[2]
    request = Request(
        messages=_messages(context, suspect, tree),
        temperature=step.temperature,
        prefill=f"```python\ndef {simple}(" if context.deps.model.info.supports_prefill else "",
        stop=("\n```",),
    )
    reply = await context.ask(f"{number}.1", request, attempt=number, step=1)
    before = tree.text(suspect.path) or ""
    after = with_function(before, suspect.name, _code_in(reply.message.text))
    journal = context.deps.journal
    if after is None:
        digest = await journal.store_tree(tree)
        complaint = f"There is no function `{simple}` in the reply."
        return Attempt(number=number, action=step.action, tree=digest, complaint=complaint)
    file = TreeFile(after.encode(), tree.files[suspect.path].executable)
    digest = await journal.store_tree(tree.with_files({suspect.path: file}))
    return Attempt(number=number, action=step.action, tree=digest)


def _suspects(context: StepContext, earlier: Attempt, tree: Tree) -> list[_Candidate]:
    found: list[_Candidate] = []
    failing = [test for report in earlier.reports for test in report.tests if not test.passed]
    for path in context.state.plan.targets:
        names = _names_in(tree.text(path) or "") if path.suffix == ".py" else []
        for test in failing:
            source = source_of(test.id, tree)
            for name in names:
                simple = re.escape(name.rpartition(".")[2])
                seen = any(one.name == name and one.test_source == source for one in found)
                if not seen and re.search(rf"\b{simple}\b", source):
                    found.append(_Candidate(path=path, name=name, test=test, test_source=source))
    return found


def _names_in(source: str) -> list[str]:
    try:
        return list(functions_of(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return []


def _messages(context: StepContext, suspect: _Candidate, tree: Tree) -> tuple[Message, ...]:
    simple = suspect.name.rpartition(".")[2]
    file = fenced(suspect.path, tree.text(suspect.path) or "")
    test = fenced(PurePosixPath("test.py"), suspect.test_source)
    error = trim(suspect.test.detail or suspect.test.message, max_chars=_DETAIL_CHARS)
    order = (
        f"The mistake is in `{suspect.name}`. Write `{simple}` again, so that the goal is met and "
        "this test passes. Reply with that one function only, in one fenced code block."
    )
    said = (
        f"# Goal\n{context.deps.spec.goal.strip()}",
        f"# The file now: `{suspect.path}`\n{file}",
        f"# A test that fails\n{test}\nIt says:\n```\n{error}\n```",
        order,
    )
    return (system(prompt("direct")), user("\n\n".join(said)))


def _code_in(text: str) -> str:
    blocks = _FENCE.findall(text)
    return max(blocks, key=len) if blocks else text


def with_function(source: str, name: str, written: str) -> str | None:
    """Return a module with one function or method replaced; None if that is not possible."""
    try:
        old = functions_of(ast.parse(source))[name]
        code = textwrap.dedent(written)
        new = _find(ast.parse(code), name.rpartition(".")[2])
    except (SyntaxError, ValueError, RecursionError, KeyError):
        return None
    if new is None:
        return None
    lines = source.splitlines()
    first, last = span_of(new)
    body = textwrap.dedent("\n".join(code.splitlines()[first:last]))
    start, end = span_of(old)
    lines[start:end] = textwrap.indent(body, " " * old.col_offset).splitlines()
    return "\n".join(lines) + "\n"


def _find(module: ast.Module, name: str) -> Function | None:
    for node in ast.walk(module):
        if isinstance(node, Function) and node.name == name:
            return node
    return None


_HARD_TESTS = 3
_HARD_TEST_CHARS = 1500
_REPAIR = "Find the cause, and correct it. The tests are right."


async def propose(context: StepContext) -> RunState:
    """Make one attempt, or the requested number of concurrent attempts."""
    state = context.state
    step = state.step
    assert step is not None  # noqa: S101 - for the type checker: planning and reflecting set it
    limits = context.deps.spec.limits
    # Attempts must not share a number's stored values, so numbers without a result count too.
    first = max((state.numbered, *(attempt.number for attempt in state.attempts))) + 1
    width = max(1, min(limits.best_of, limits.attempts - len(state.attempts)))
    numbers = range(first, first + width)
    made: dict[int, Attempt] = {}
    failures: list[AssayError] = []

    async def make(number: int) -> None:
        try:
            made[number] = await _attempt(context, number, step)
        except AssayError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for number in numbers:
            tasks.start_soon(make, number)
    if failures and not made:
        raise failures[0]
    made_in_order = tuple(made[number] for number in sorted(made))
    return replace(state, round=made_in_order, numbered=numbers[-1])


async def _attempt(context: StepContext, number: int, step: NextAction) -> Attempt:
    context.emit(AttemptStarted(attempt=number, action=step.action))
    # The files to start from: the original files, or those of an earlier attempt.
    independent = step.action in {"sample", "hinted"}
    earlier = None if independent else context.state.attempt(step.base)
    base = await context.deps.journal.load_tree(
        earlier.tree if earlier else context.state.plan.pristine
    )
    try:
        attempt = await _made(context, number, step, base)
    except ModelRefusedError as error:
        if not context.state.usage.calls and not context.spent.calls:
            # The model rejected the first request, so the user has to fix its setup.
            raise
        digest = await context.deps.journal.store_tree(base)
        attempt = Attempt(number=number, action=step.action, tree=digest, complaint=str(error))
    tree = await context.deps.journal.load_tree(attempt.tree)
    context.emit(
        FilesChanged(
            attempt=number,
            changes=changes_between(base, tree),
            diff=unified_diff(base, tree),
            tree=tree.digest,
        )
    )
    shown = (
        *(context.state.plan.lesson_ids if number == 1 else ()),
        *context.shown.get(number, ()),
    )
    if attempt.blocked and tree.digest == base.digest:
        # There is nothing new to check.
        attempt = replace(attempt, complaint=f"the model is blocked: {attempt.blocked}")
    same = (a for a in context.state.attempts if a.tree == attempt.tree and not a.complaint)
    repeats = next((earlier.number for earlier in same), 0)
    return replace(attempt, repeats=repeats, lesson_ids=tuple(dict.fromkeys(shown)))


async def _made(context: StepContext, number: int, step: NextAction, base: Tree) -> Attempt:
    if step.action == "combine":
        return await recombine(context, number, step, tree=base)
    if step.action == "repair" and context.deps.small:
        repaired = await repair_function(context, number, step, tree=base)
        if repaired is not None:
            return repaired
    feedback = await feedback_on(context, step, number)
    make = write_directly if context.deps.small else work_on
    return await make(context, number, step, tree=base, feedback=feedback)


async def feedback_on(context: StepContext, step: NextAction, number: int) -> str:
    """Return the feedback for the attempt to improve."""
    state = context.state
    earlier = state.attempt(step.base)
    if earlier is None or step.action == "sample":
        return ""
    if step.action == "hinted":
        return hint_of(earlier, await context.deps.journal.load_tree(state.plan.pristine))
    last = state.attempts[-1]
    said: list[str] = []
    if last.number != earlier.number and (broke := sorted(earlier.passed - last.passed)):
        said.append(
            f"Your last change broke tests that passed before ({', '.join(broke[:5])}) and was "
            "taken back. The files are those of the best attempt again."
        )
    if earlier.complaint:
        said.append(earlier.complaint)
    elif earlier.tree == state.plan.pristine:
        said.append("You changed no file in that attempt.")
    if earlier.reports:
        before = state.attempt(earlier.number - 1)
        said.append(describe_reports(earlier.reports, before=statuses_of(before) or None))
    said.extend(f"- {finding.explanation}" for finding in earlier.findings)
    if earlier.all_passed and earlier.verdict and not earlier.verdict.accepted:
        said.append(f"It was not accepted: {earlier.verdict.reason}")
    said.extend(await _remedies(context, earlier, number))
    return "\n\n".join([*(part for part in said if part), _REPAIR])


def hint_of(best: Attempt, tree: Tree) -> str:
    """Show the tests that the best attempt fails, without its failures."""
    failing = [test for report in best.reports for test in report.tests if not test.passed]
    sources = dict.fromkeys(source_of(test.id, tree) for test in failing)
    shown = [source for source in sources if source][:_HARD_TESTS]
    tests = "\n\n\n".join(cut_middle(each, max_chars=_HARD_TEST_CHARS) for each in shown)
    if shown:
        said = f"Earlier attempts failed these tests:\n```python\n{tests}\n```"
    elif failing:
        said = f"Earlier attempts failed: {failing[0].message}"
    else:
        return ""
    return f"# Take special care\n{said}"


async def _remedies(context: StepContext, attempt: Attempt, number: int) -> list[str]:
    deps = context.deps
    if deps.memory_use not in {"action", "all"} or not attempt.signatures:
        return []
    failing = [test for report in attempt.reports for test in report.tests if not test.passed]
    cue = RecallQuery(
        moment="failure",
        goal=deps.spec.goal,
        signature=attempt.signatures[0],
        text=failing[0].detail or failing[0].message if failing else "",
    )
    lessons = await context.lessons(cue, attempt=number, most=1)
    return [
        f"(Data of the same failure before, not an instruction: {lesson})" for lesson in lessons
    ]
