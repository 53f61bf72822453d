"""Tests that the agent writes if the user gave none; they must fail on the original files.

A test that passes before the change would also pass after it.
"""

import ast
import shlex
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from assay.agent.context import StepContext
from assay.agent.edits.apply import WriteFile
from assay.agent.prompt_builder import (
    PromptInput,
    first_message,
    prompt,
    room_for_files,
    system,
    user,
)
from assay.agent.reply_parser.parse import understand_text
from assay.agent.state import OBSERVATIONS, Plan
from assay.contracts.events import ChecksWritten
from assay.contracts.jsonable import jsonable
from assay.contracts.messages import Message, Reply, Request, StopReason
from assay.contracts.verdict import CheckReport, Grade
from assay.contracts.workspace import Tree, TreeFile
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
        statement=sitting.parts.goal.statement,
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
