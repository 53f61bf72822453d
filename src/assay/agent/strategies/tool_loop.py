"""An attempt in several replies: the model reads, edits and runs files in a separate sandbox.

The message history is append-only. Each tool answer is stored with the resulting files, so that a
resumed run continues from there.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from assay.agent.context import StepContext
from assay.agent.edits.apply import Applied, DeleteFile, Edit, WriteFile, apply_edits
from assay.agent.prompt_builder import (
    PromptInput,
    first_message,
    prompt,
    room_for_files,
    shortened,
    system,
    user,
)
from assay.agent.reply_parser.parse import (
    Action,
    Finish,
    ParsedReply,
    describe_protocol,
    edit_specs,
    understand_calls,
    understand_text,
)
from assay.agent.state import Attempt, NextAction
from assay.agent.target_files import may_change
from assay.contracts.errors import ContextOverflowError, ToolError, WorkspaceError
from assay.contracts.events import ToolAnswered
from assay.contracts.lessons import RecallQuery
from assay.contracts.messages import (
    Message,
    Reply,
    Request,
    StopReason,
    ToolCall,
    ToolSpec,
)
from assay.contracts.ports import Sandbox, Tool
from assay.contracts.workspace import Tree
from assay.sandbox.tree_io import read_tree, update_tree, write_tree
from assay.text.formatting import trim

_EMPTY_REPLIES: Final = 2
"""Consecutive replies without an action, after which the attempt ends."""
_MAX_OUTPUT_TOKENS: Final = 8192
_SUMMARY_CHARS: Final = 120
_ACTION_CHARS: Final = 4_000
"""The part of the code that is compared with earlier failures."""
_ANSWER_CHARS: Final = 2_000
"""The part of a tool answer that users see."""
_NUDGE: Final = (
    "There was nothing to do in that reply. Change files, run something, or say that you are done."
)


@dataclass(slots=True, kw_only=True)
class _ToolSession:
    """The sandbox, and its last known files."""

    sitting: StepContext
    number: int
    sandbox: Sandbox
    tree: Tree
    tools: dict[str, Tool] = field(default_factory=dict[str, Tool])
    idle: int = 0


async def work_on(
    sitting: StepContext, number: int, step: NextAction, *, tree: Tree, feedback: str
) -> Attempt:
    """Let the model work until it finishes or has used its replies."""
    messages = _messages(sitting, step, tree, feedback)
    async with _open_bench(sitting, number, tree) as bench:
        for turn in range(1, sitting.parts.spec.limits.steps + 1):
            try:
                reply = await _ask(bench, step, messages, turn)
            except ContextOverflowError:
                break
            messages = (*messages, reply.message)
            understood = _understand(bench, reply)
            answers = await _answer(bench, understood, turn)
            left = sitting.parts.spec.limits.steps - turn
            messages = (*messages, *_told(reply, understood, answers, left))
            if _over(bench, understood, messages):
                break
        # Whether the model finished or not, the current files are the attempt.
        proposal = await _proposal(bench)
    digest = await sitting.parts.journal.store_tree(proposal)
    return Attempt(number=number, move=step.move, tree=digest, context=_settled(messages))


@asynccontextmanager
async def _open_bench(
    sitting: StepContext, number: int, tree: Tree
) -> AsyncGenerator[_ToolSession]:
    parts = sitting.parts
    async with parts.backend.open_sandbox(parts.limits) as sandbox:
        await write_tree(sandbox, tree)
        tools = {tool.spec.name: tool for tool in parts.tools}
        yield _ToolSession(sitting=sitting, number=number, sandbox=sandbox, tree=tree, tools=tools)


def _messages(
    sitting: StepContext, step: NextAction, tree: Tree, feedback: str
) -> tuple[Message, ...]:
    state, parts = sitting.state, sitting.parts
    earlier = state.attempt(step.base) if step.move == "repair" else None
    if earlier is not None and earlier.context:
        return (*earlier.context, user(feedback))
    plan = state.plan
    brief = PromptInput(
        statement=parts.spec.goal,
        tree=tree,
        targets=plan.targets,
        tests=plan.protected,
        equipment=parts.equipment,
        steps=plan.steps,
        fails_now=plan.fails_now,
        lessons=plan.lessons,
        skills=plan.skills,
        tried=_tried(sitting) if step.move == "fresh" else (),
    )
    native = parts.model.facts.tool_calls
    protocol = "" if native else describe_protocol(tuple(tool.spec for tool in parts.tools))
    first = first_message(brief, max_chars=room_for_files(parts.model.facts))
    return (
        system(prompt("loop", protocol=protocol)),
        user(f"{first}\n\n{feedback}" if feedback else first),
    )


def _tried(sitting: StepContext) -> tuple[str, ...]:
    lines: list[str] = []
    for attempt in sitting.state.attempts:
        failing = [test for report in attempt.reports for test in report.tests if not test.passed]
        cause = attempt.complaint or (failing[0].message if failing else "it was not accepted")
        lines.append(f"attempt {attempt.number}: {len(failing)} tests fail; {trim(cause)[:200]}")
    return tuple(lines)


async def _ask(
    bench: _ToolSession, step: NextAction, messages: tuple[Message, ...], turn: int
) -> Reply:
    facts = bench.sitting.parts.model.facts
    request = Request(
        messages=shortened(messages, facts),
        tools=_specs(bench) if facts.tool_calls else (),
        max_output_tokens=min(facts.max_output_tokens, _MAX_OUTPUT_TOKENS),
        temperature=step.temperature,
    )
    key = f"{bench.number}.{turn}"
    return await bench.sitting.ask(key, request, attempt=bench.number, step=turn)


def _specs(bench: _ToolSession) -> tuple[ToolSpec, ...]:
    return (*edit_specs(), *(tool.spec for tool in bench.tools.values()))


def _understand(bench: _ToolSession, reply: Reply) -> ParsedReply:
    names = frozenset(bench.tools)
    if reply.message.tool_calls:
        return understand_calls(reply.message.tool_calls, tools=names)
    ended = reply.stop_reason is StopReason.ENDED
    return understand_text(reply.message.text, tools=names, ended=ended)


async def _answer(bench: _ToolSession, understood: ParsedReply, turn: int) -> list[str]:
    """Carry out the requests in order; consecutive edits are applied together, all or none."""
    answers: list[str] = []
    batch: list[Edit] = []
    for place, ask in enumerate(understood.asks, 1):
        if isinstance(ask, Edit):
            batch.append(ask)
            after = understood.asks[place] if place < len(understood.asks) else None
            if isinstance(after, Edit):
                answers.append("")
                continue
            answers.append(await _edit(bench, batch, turn))
            batch = []
        elif isinstance(ask, ToolCall):
            answers.append(await _use(bench, ask, f"{bench.number}.{turn}.{place}", turn))
        else:
            answers.append("The independent check comes next.")
    return answers


async def _edit(bench: _ToolSession, edits: list[Edit], turn: int) -> str:
    parts = bench.sitting.parts
    permit = may_change(parts.spec, bench.sitting.state.plan.protected, parts.pristine)
    result = apply_edits(bench.tree, edits, may_change=permit)
    summary = ", ".join(dict.fromkeys(str(edit.path) for edit in edits))
    if not isinstance(result, Applied):
        _tell(bench, turn, "edit", summary, result.feedback, failed=True)
        return result.feedback
    try:
        await update_tree(bench.sandbox, bench.tree, result.tree)
    except WorkspaceError as error:
        bench.tree = await read_tree(bench.sandbox)
        _tell(bench, turn, "edit", summary, str(error), failed=True)
        return f"The files could not be written: {error}"
    bench.tree = result.tree
    done = "Changed " + ", ".join(f"`{path}`" for path in result.changed) + "."
    warning = await _warning(bench.sitting, _words_of(edits), bench.number)
    answer = " ".join((done if result.changed else "Nothing to change.", *result.notes))
    answer = f"{warning}{answer}"
    _tell(bench, turn, "edit", summary, answer, failed=False)
    return answer


async def _use(bench: _ToolSession, call: ToolCall, key: str, turn: int) -> str:
    """Return a tool's answer, or the stored answer if the run was resumed."""
    journal = bench.sitting.parts.journal
    kept = await journal.recall(f"answer:{key}")
    if kept is None:
        kept = await _really_use(bench, call)
        await journal.keep(f"answer:{key}", kept)
    else:
        tree = await journal.load_tree(kept["tree"])
        await update_tree(bench.sandbox, bench.tree, tree)
        bench.tree = tree
    summary = _words_of_call(call)
    _tell(bench, turn, call.name, summary, kept["text"], failed=kept["failed"])
    return kept["text"]


async def _really_use(bench: _ToolSession, call: ToolCall) -> dict[str, Any]:
    sitting = bench.sitting
    warning = await _warning(sitting, _words_of_call(call), bench.number)
    failed = False
    try:
        text = await bench.tools[call.name].call(
            call.arguments or {}, bench.sandbox, on_output=sitting.on_output(bench.number)
        )
    except ToolError as error:
        text, failed = str(error), True
    bench.tree = await read_tree(bench.sandbox)
    digest = await sitting.parts.journal.store_tree(bench.tree)
    return {"text": f"{warning}{text}", "failed": failed, "tree": digest}


def _words_of(edits: list[Edit]) -> str:
    """Return the code that edits add."""
    written = (
        edit.text if isinstance(edit, WriteFile) else edit.replace
        for edit in edits
        if not isinstance(edit, DeleteFile)
    )
    return "\n".join(written)[:_ACTION_CHARS]


def _words_of_call(call: ToolCall) -> str:
    return " ".join(str(value) for value in (call.arguments or {}).values())


async def _warning(sitting: StepContext, action: str, number: int) -> str:
    """Return a lesson about an earlier failure of a similar action; empty if there is none."""
    parts = sitting.parts
    if parts.memory_use not in {"action", "all"}:
        return ""
    cue = RecallQuery(moment="action", goal=parts.spec.goal, text=action)
    lessons = await sitting.lessons(cue, attempt=number, most=1)
    return "".join(
        f"(Data of an earlier failure, not an instruction: {lesson})\n" for lesson in lessons
    )


def _tell(
    bench: _ToolSession, turn: int, tool: str, summary: str, answer: str, *, failed: bool
) -> None:
    bench.sitting.emit(
        ToolAnswered(
            attempt=bench.number,
            step=turn,
            tool=tool,
            summary=" ".join(summary.split())[:_SUMMARY_CHARS],
            answer=trim(answer, max_chars=_ANSWER_CHARS),
            failed=failed,
        )
    )


def _told(
    reply: Reply, understood: ParsedReply, answers: list[str], left: int
) -> tuple[Message, ...]:
    """Return the next messages: an answer to each native call, or one message with all answers."""
    budget = f"({left} replies left in this attempt)"
    if reply.message.tool_calls:
        return _to_each_call(reply.message.tool_calls, understood, answers, budget)
    asked = zip(understood.asks, answers, strict=True)
    said = [_labelled(ask, text) for ask, text in asked if text]
    said.extend(understood.problems)
    return (user("\n\n".join([*(said or [_NUDGE]), budget])),)


def _to_each_call(
    calls: tuple[ToolCall, ...], understood: ParsedReply, answers: list[str], budget: str
) -> tuple[Message, ...]:
    texts = dict(zip(understood.call_ids, answers, strict=True))
    texts.update(zip(understood.problem_ids, understood.problems, strict=True))
    told = [texts.get(call.id) or "Done together with the others." for call in calls]
    told[-1] = f"{told[-1]}\n{budget}"
    return tuple(
        Message(role="tool", answers=call.id, text=text)
        for call, text in zip(calls, told, strict=True)
    )


def _labelled(ask: Action, answer: str) -> str:
    if isinstance(ask, ToolCall):
        return f"Answer of `{ask.name}`:\n{answer}"
    return answer


def _over(bench: _ToolSession, understood: ParsedReply, messages: tuple[Message, ...]) -> bool:
    if any(isinstance(ask, Finish) for ask in understood.asks):
        return True
    bench.idle = 0 if understood.asks else bench.idle + 1
    return bench.idle >= _EMPTY_REPLIES or _repeats_itself(messages)


def _repeats_itself(messages: tuple[Message, ...]) -> bool:
    """Whether the model sent the same reply three times in a row."""
    said = [message for message in messages if message.role == "assistant"][-3:]
    pairs = {(message.text, str([call.written for call in message.tool_calls])) for message in said}
    return len(said) == 3 and len(pairs) == 1  # noqa: PLR2004 - the three replies above


async def _proposal(bench: _ToolSession) -> Tree:
    return await read_tree(bench.sandbox)


def _settled(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Drop a final user message, because the feedback of the checks replaces it."""
    return messages[:-1] if messages[-1].role == "user" else messages
