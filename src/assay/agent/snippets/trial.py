"""Tests snippets: before they are stored, and again before a later run uses them.

A snippet is stored only if its test passes with it and fails without it. A later goal gets it only
after the same test in that run.
"""

import difflib
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import anyio
from pydantic import TypeAdapter

from assay.agent.context import StepContext
from assay.agent.snippets.extract import definition_of
from assay.agent.snippets.harvest import skills_in
from assay.agent.state import Attempt, Plan, RunState
from assay.agent.target_files import names_wanted
from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.jsonable import jsonable
from assay.contracts.lessons import RecallQuery, Snippet
from assay.contracts.verdict import Grade
from assay.contracts.workspace import Tree, TreeFile, changes_between
from assay.verify.spec import VerificationSpec

_MOST_KEPT: Final = 2
"""Snippets per run: the user waits while fresh sandboxes verify each one."""
_TEST_S: Final = 60.0
_MOST_S: Final = 90.0
"""For all snippet tests of one step; a quarter of the remaining time, if that is less."""
_ALIKE: Final = 0.8
_SKILLS: Final = TypeAdapter(tuple[Snippet, ...])


async def proven_skills(sitting: StepContext, plan: Plan) -> tuple[Snippet, ...]:
    """Recall snippets that may serve the goal, and return those whose tests pass again."""
    parts = sitting.parts
    tree = await parts.journal.load_tree(plan.pristine)
    wanted = [name for path in plan.targets for name in names_wanted(plan.protected, path, tree)]
    cue = RecallQuery(moment="plan", goal=parts.goal.statement, text=" ".join(wanted))

    async def really() -> Mapping[str, Any]:
        held: list[Snippet] = []
        for skill in await parts.memory.offer(cue):
            if _is_there(skill, tree) or _is_screened_out(sitting, skill):
                continue
            holds = await _holds(sitting, skill)
            await parts.memory.tested(skill.id, passed=holds)
            if holds:
                held.append(skill)
        return {"skills": jsonable(tuple(held))}

    with _limited(sitting):
        kept = await sitting.once("skills", really)
        return _SKILLS.validate_python(kept["skills"])
    return ()


async def keep_skills(sitting: StepContext, accepted: Attempt) -> None:
    """Extract snippets from accepted files, and store those whose tests hold."""
    parts, verdict = sitting.parts, accepted.verdict
    if verdict is None or verdict.grade is None or verdict.findings:
        return
    if verdict.grade.rank < Grade.CHECKED.rank:
        return
    tree = await parts.journal.load_tree(verdict.tree or accepted.tree)
    found = skills_in(parts.pristine, tree, sitting.state.plan.protected)
    about = {"purpose": parts.goal.statement, "run": parts.run, "grade": verdict.grade.value}
    # The files are accepted by now, so a timeout or a missing sandbox must not undo that.
    with _limited(sitting), suppress(SandboxUnavailableError):
        for skill in islice(found, _MOST_KEPT):
            whole = replace(skill, **about)
            if not _is_screened_out(sitting, whole) and await _holds(sitting, whole):
                await parts.memory.keep(whole)


async def judge_skills(sitting: StepContext, state: RunState, accepted: Attempt | None) -> None:
    """Record for offered snippets whether the accepted attempt uses them, or only others do.

    A snippet that no attempt uses gets no record.
    """
    parts = sitting.parts
    for skill in state.plan.skills:
        if accepted is not None and await _uses(sitting, accepted, skill):
            await parts.memory.judge((skill.id,), helped=True)
            continue
        for attempt in state.attempts:
            if attempt.reports and await _uses(sitting, attempt, skill):
                await parts.memory.judge((skill.id,), helped=False)
                break


def _limited(sitting: StepContext) -> anyio.CancelScope:
    """Return a scope that leaves most of the remaining time to the run."""
    left_s = max(0.0, sitting.parts.goal.effort.wall_s - sitting.wall_s)
    return anyio.move_on_after(min(_MOST_S, left_s / 4))


def _is_there(skill: Snippet, tree: Tree) -> bool:
    """Whether the workspace already has the snippet, where the model sees it."""
    texts = [tree.text(path) or "" for path in tree.files if path.suffix == ".py"]
    return any(
        definition and definition in {definition_of(text, name) for text in texts if name in text}
        for name in skill.names
        for definition in [definition_of(skill.source, name)]
    )


def _is_screened_out(sitting: StepContext, skill: Snippet) -> bool:
    parts = sitting.parts
    return parts.policy != "off" and bool(parts.screen(skill.path, skill.source.encode()))


async def _holds(sitting: StepContext, skill: Snippet) -> bool:
    """Run the test of a snippet without it and with it, in otherwise empty sandboxes."""
    test = Tree(files={skill.test_path: TreeFile(skill.test.encode())})
    whole = test.with_files({skill.path: TreeFile(skill.source.encode())})
    case = VerificationSpec(
        pristine=test,
        checks=(f"pytest {shlex.quote(str(skill.test_path))}",),
        protected=(skill.test_path,),
        check_s=_TEST_S,
    )
    verifier = sitting.parts.verifier
    without = await verifier.run_checks(case, test)
    if all(seen.report.passed for seen in without):
        return False
    verdict = await verifier.verify(case, whole)
    return verdict.accepted and not verdict.findings


async def _uses(sitting: StepContext, attempt: Attempt, skill: Snippet) -> bool:
    """Whether an attempt contains the code of a snippet, unchanged or slightly changed."""
    tree = await sitting.parts.journal.load_tree(attempt.tree)
    changed = changes_between(sitting.parts.pristine, tree)
    texts = [tree.text(one.path) or "" for one in changed if one.path.suffix == ".py"]
    for name in skill.names:
        ours = definition_of(skill.source, name)
        for text in texts:
            theirs = definition_of(text, name) if ours and name in text else ""
            if theirs and difflib.SequenceMatcher(None, ours, theirs).ratio() >= _ALIKE:
                return True
    return False
