"""An attempt in one reply: the model receives the file and the tests, and writes the file.

Demonstrations and tests that a small model adds to a module unasked are removed.
"""

import ast
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from assay.agent.context import StepContext
from assay.agent.edits.apply import Applied, Edit, WriteFile, apply_edits
from assay.agent.prompt_builder import (
    language_of,
    prompt,
    system,
    user,
)
from assay.agent.reply_parser.parse import ParsedReply, describe_protocol, understand_text
from assay.agent.state import Attempt, NextAction, Plan
from assay.agent.target_files import may_change, names_wanted, only_imported
from assay.contracts.messages import Message, Request, StopReason
from assay.contracts.workspace import Tree

_KEPT_AT_TOP = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
)


def tidy_module(source: str) -> str:
    """Return the source without top-level prints, asserts, demonstrations and test functions.

    Source that cannot be parsed, or would be empty afterwards, is returned unchanged.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return source
    lines = source.splitlines(keepends=True)
    kept = False
    for node in reversed(module.body):
        if not _is_demonstration(node):
            kept = kept or isinstance(node, _KEPT_AT_TOP)
            continue
        del lines[_first_line(node) - 1 : node.end_lineno]
    return "".join(lines) if kept else source


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_demonstration(node: ast.stmt) -> bool:
    match node:
        case ast.Assert():
            found = True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            found = name == "print" or name.startswith("test_")
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            found = name in {"unittest", "doctest"}
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), body=body):
            found = all(_is_demonstration(inner) for inner in body)
        case ast.FunctionDef(name=name):
            found = name.startswith("test_")
        case ast.ClassDef(bases=bases):
            found = any("TestCase" in ast.unparse(base) for base in bases)
        case _:
            found = False
    return found


_CHANCES: Final = 2
"""Replies per attempt, if the first is unusable."""
_LEAST_TOKENS: Final = 1024
_CHARS_PER_TOKEN: Final = 3


async def write_directly(
    context: StepContext, number: int, step: NextAction, *, tree: Tree, feedback: str
) -> Attempt:
    """Ask for complete files and apply them; a repair continues the messages of its attempt."""
    messages = _messages(context, step, tree, feedback)
    targets = context.state.plan.targets
    sole = targets[0] if len(targets) == 1 else None
    info = context.deps.model.info
    led = info.supports_prefill and sole is not None
    longest = max((len(tree.text(path) or "") for path in targets), default=0)
    max_tokens = min(info.max_output_tokens, _LEAST_TOKENS + 2 * longest // _CHARS_PER_TOKEN)
    complaint = ""
    for chance in range(1, _CHANCES + 1):
        request = Request(
            messages=messages,
            max_output_tokens=max_tokens,
            temperature=step.temperature,
            prefill=f"```{language_of(sole)}\n" if led and sole is not None else "",
            stop=("\n```",) if led else (),
        )
        reply = await context.ask(f"{number}.{chance}", request, attempt=number, step=chance)
        answer = reply.message
        if request.prefill and reply.stop_reason is StopReason.ENDED:
            # The stop word removed the closing fence.
            answer = replace(answer, text=f"{answer.text.rstrip()}\n```")
        messages = (*messages, answer)
        understood = understand_text(
            reply.message.text,
            sole_target=sole,
            tools=frozenset(),
            ended=reply.stop_reason is StopReason.ENDED,
        )
        result = _applied(context, tree, understood)
        if isinstance(result, Tree):
            digest = await context.deps.journal.store_tree(result)
            return Attempt(number=number, action=step.action, tree=digest, context=messages)
        complaint = result
        messages = (*messages, user(f"That cannot be used. {complaint}"))
    digest = await context.deps.journal.store_tree(tree)
    return Attempt(
        number=number, action=step.action, tree=digest, context=messages, complaint=complaint
    )


def _messages(
    context: StepContext, step: NextAction, tree: Tree, feedback: str
) -> tuple[Message, ...]:
    plan = context.state.plan
    earlier = context.state.attempt(step.base) if step.action == "repair" else None
    names = " and ".join(f"`{path}`" for path in plan.targets)
    if earlier is not None and earlier.context:
        again = f"Write the whole corrected {names}." if names else ""
        return (*earlier.context, user(f"{feedback}\n{again}"))
    told = prompt("direct")
    if len(plan.targets) != 1:
        told = f"{told}\n\n{describe_protocol(())}"
    # The feedback comes last, so that all samples share the prefix in the prompt cache.
    said = (
        context.first_message(replace(plan, steps=()), tree),
        _to_define(plan, tree),
        # Small models tend to copy an existing file.
        f"Find the mistakes. Write the whole corrected {names}: it must not stay as it is."
        if plan.fails_now
        else "",
        feedback,
    )
    return (system(told), user("\n\n".join(part for part in said if part)))


def _to_define(plan: Plan, tree: Tree) -> str:
    """List the names that the tests import: small models tend to forget exceptions or constants."""
    lines: list[str] = []
    for target in plan.targets:
        names = names_wanted(plan.protected, target, tree)
        if names:
            lines.append(f"`{target}` has to define {', '.join(f'`{name}`' for name in names)}.")
    return "\n".join(lines)


def _applied(context: StepContext, tree: Tree, understood: ParsedReply) -> Tree | str:
    """Return the changed files, or the error in the reply."""
    imported = only_imported(context.state.plan.protected, tree)
    edits = [_tidied(ask, imported) for ask in understood.asks if isinstance(ask, Edit)]
    if not edits:
        return " ".join(understood.problems) or "There is no file in it."
    deps = context.deps
    permit = may_change(deps.spec, context.state.plan.protected, deps.pristine)
    result = apply_edits(tree, edits, may_change=permit)
    return result.tree if isinstance(result, Applied) else result.feedback


def _tidied(edit: Edit, imported: frozenset[PurePosixPath]) -> Edit:
    if isinstance(edit, WriteFile) and edit.path.suffix == ".py" and edit.path in imported:
        return replace(edit, text=tidy_module(edit.text))
    return edit
