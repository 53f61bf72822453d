"""Repair for small models: rewrite one function, with one failing test in the prompt.

Asked for the complete file, a small model copies it with its mistakes. One function is less to copy
and only one thing to correct.
"""

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.agent.context import StepContext
from assay.agent.prompt_builder import fenced, prompt, system, user
from assay.agent.state import Attempt, NextAction
from assay.agent.strategies.crossover import Function, functions_of, span_of
from assay.agent.test_source import source_of
from assay.contracts.messages import Message, Request
from assay.contracts.verdict import TestResult
from assay.contracts.workspace import Tree, TreeFile
from assay.text.truncate import trim

_TOKENS: Final = 600
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
    sitting: StepContext, number: int, step: NextAction, *, tree: Tree
) -> Attempt | None:
    """Have one function of the best attempt rewritten; None if no failing test points to one."""
    earlier = sitting.state.attempt(step.base)
    suspects = _suspects(sitting, earlier, tree) if earlier else []
    if not suspects:
        return None
    suspect = suspects[number % len(suspects)]
    simple = suspect.name.rpartition(".")[2]
    request = Request(
        messages=_messages(sitting, suspect, tree),
        max_output_tokens=_TOKENS,
        temperature=step.temperature,
        prefill=f"```python\ndef {simple}(" if sitting.parts.model.facts.supports_prefill else "",
        stop=("\n```",),
    )
    reply = await sitting.ask(f"{number}.1", request, attempt=number, step=1)
    before = tree.text(suspect.path) or ""
    after = with_function(before, suspect.name, _code_in(reply.message.text))
    journal = sitting.parts.journal
    if after is None:
        digest = await journal.store_tree(tree)
        complaint = f"There is no function `{simple}` in the reply."
        return Attempt(number=number, move=step.move, tree=digest, complaint=complaint)
    file = TreeFile(after.encode(), tree.files[suspect.path].executable)
    digest = await journal.store_tree(tree.with_files({suspect.path: file}))
    return Attempt(number=number, move=step.move, tree=digest)


def _suspects(sitting: StepContext, earlier: Attempt, tree: Tree) -> list[_Candidate]:
    found: list[_Candidate] = []
    failing = [test for report in earlier.reports for test in report.tests if not test.passed]
    for path in sitting.state.plan.targets:
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


def _messages(sitting: StepContext, suspect: _Candidate, tree: Tree) -> tuple[Message, ...]:
    simple = suspect.name.rpartition(".")[2]
    file = fenced(suspect.path, tree.text(suspect.path) or "")
    test = fenced(PurePosixPath("test.py"), suspect.test_source)
    error = trim(suspect.test.detail or suspect.test.message, max_chars=_DETAIL_CHARS)
    order = (
        f"The mistake is in `{suspect.name}`. Write `{simple}` again, so that the goal is met and "
        "this test passes. Reply with that one function only, in one fenced code block."
    )
    said = (
        f"# Goal\n{sitting.parts.goal.statement.strip()}",
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
