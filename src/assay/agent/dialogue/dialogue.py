"""The conversation itself: the model speaks or runs code, reads what came of it, and answers."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.agent.context import user
from assay.agent.dialogue.manners import Approve, Manners, approve_nothing
from assay.agent.dialogue.notebook import Notebook
from assay.agent.dialogue.observing import (
    Sizes,
    describe,
    keep_shown,
    keep_written,
    look_around,
)
from assay.agent.dialogue.previews import preview
from assay.agent.dialogue.reading import Said, read_reply
from assay.agent.dialogue.telling import CELL_BEGINS, observed, opening
from assay.agent.shortening import shortened
from assay.agent.trimming import trim
from assay.contracts.conversation import Message, Reply, Request, ToolCall, Usage
from assay.contracts.dialogue import (
    CellBegan,
    CellEnded,
    CellPrinted,
    DialogueEvent,
    Exhibit,
    FileLoaded,
    ModelChosen,
    SpeechArrived,
    StateRebuilt,
    ToolAsk,
    ToolUsed,
    TurnBegan,
    TurnEnded,
    TurnStatus,
    TurnUndone,
)
from assay.contracts.dialogue_history import History
from assay.contracts.errors import (
    AssayError,
    ContextOverflowError,
    SandboxUnavailableError,
    ToolError,
    UsageError,
)
from assay.contracts.execution import OutputChunk
from assay.contracts.ports import DialogueRecord, Model, Sandbox, Screen, Tool

_ANSWER_CHARS: Final = 8_000
_TIRED: Final = (
    "You have no more cells in this turn. Say in plain words, without code, what you found out, "
    "and what is missing."
)
_STUCK: Final = (
    "That has failed several times. Say in plain words, without code, what you found out, and "
    "what went wrong."
)
_AGAIN: Final = "That is the cell you ran before. Answer in plain words, without code."


@dataclass(slots=True, kw_only=True)
class _Sitting:
    """One turn under way."""

    turn: int
    messages: tuple[Message, ...]
    step: int = 0
    failures: int = 0
    """In a row."""
    mending: bool = False
    """A small model says something made up rather than to try again, unless it is led to."""
    last_code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueParts:
    """What a conversation is made of: chosen and joined elsewhere, used here."""

    notebook: Notebook
    record: DialogueRecord
    screen: Screen
    tools: tuple[Tool, ...] = ()
    manners: Manners = field(default_factory=Manners)
    approve: Approve = approve_nothing


class Dialogue:
    """One conversation: one history, one notebook, one model at a time. One turn at a time."""

    def __init__(self, parts: DialogueParts, model: Model, history: History) -> None:
        self.model = model
        self.history = history
        self._notebook = parts.notebook
        self._record = parts.record
        self._screen = parts.screen
        self._tools = {tool.spec.name: tool for tool in parts.tools}
        self._manners = parts.manners
        self._approve = parts.approve
        self._scope: anyio.CancelScope | None = None

    @property
    def sandbox(self) -> Sandbox | None:
        """Where the notebook lives, while it is open."""
        return self._notebook.sandbox

    async def say(self, message: str) -> TurnEnded:
        """Take one turn. What goes wrong in it is part of its end, and the conversation goes on.

        Raises:
            UsageError: If there is nothing in the message.
            JournalError: If the conversation can no longer be written down.
        """
        if not message.strip():
            raise UsageError("the message is empty", hint="say what you want to know")
        turn = self.history.begun + 1
        self._tell(TurnBegan(turn=turn, message=message))
        with anyio.CancelScope() as self._scope:
            try:
                return await self._answer(turn)
            except ContextOverflowError as error:
                return self._end(turn, "failed", f"This has become too long for the model: {error}")
            except AssayError as error:
                return self._end(turn, "failed", f"{error}" + _hinted(error))
            except anyio.get_cancelled_exc_class():
                if not self._scope.cancel_called:
                    self._end(turn, "interrupted", "The turn was interrupted.")
                raise
        return self._end(turn, "interrupted", "The turn was interrupted.")

    def interrupt(self) -> None:
        """End the turn that is under way, with the reply being written or the cell that runs."""
        if self._scope is not None:
            self._scope.cancel()

    async def load(self, path: PurePosixPath, content: bytes) -> FileLoaded:
        """Put a file of a person's into the workspace, for this sitting and later ones.

        Raises:
            JournalError: If it cannot be kept.
            WorkspaceError: If it cannot be written into the workspace.
            SandboxUnavailableError: If there is no workspace, and none can be had.
        """
        await self._look_around()
        async with self._notebook.in_use() as used:
            await used.sandbox.write_file(path, content)
            await self._record.keep_file(path, content)
            about = await preview(used.sandbox, path, content)
        loaded = FileLoaded(path=str(path), size_bytes=len(content), about=about)
        self._tell(loaded)
        return loaded

    async def undo(self) -> TurnUndone:
        """Take the last turn back; the interpreter is made anew without its cells.

        Raises:
            UsageError: If there is no turn.
        """
        if not self.history.turns:
            raise UsageError("there is nothing to undo")
        last = self.history.turns[-1]
        undone = TurnUndone(turn=last.number)
        self._tell(undone)
        if any(cell.kept for cell in last.cells):
            await self._notebook.close()
            await self._ensure_open("a turn was undone")
        return undone

    def choose(self, model: Model) -> None:
        """Let another model answer from here on."""
        self.model = model
        if self.history.model != model.name:
            self._tell(ModelChosen(model=model.name))

    async def wake(self) -> None:
        """Have the notebook ready before anybody needs it; raises like `Notebook.open`."""
        await self._ensure_open("the session was closed")

    def _tell(self, event: DialogueEvent) -> None:
        self._record.emit(event)
        self.history = self.history.after(event)

    def _end(
        self, turn: int, status: TurnStatus, text: str, usage: Usage | None = None
    ) -> TurnEnded:
        ended = TurnEnded(turn=turn, status=status, text=text, usage=usage or Usage())
        self._tell(ended)
        return ended

    async def _answer(self, turn: int) -> TurnEnded:
        sitting = _Sitting(turn=turn, messages=opening(self.history, self.model.facts))
        while True:
            reply = await self._ask(sitting)
            said = read_reply(reply.message.text)
            calls = reply.message.tool_calls
            last = sitting.step >= self._manners.steps
            if last or not (calls or said.code):
                status = "answered" if said.thought else "out_of_steps"
                return self._end(turn, status, _answer_of(said, sitting), reply.usage)
            if calls:
                await self._use_tools(sitting, reply)
            else:
                await self._run(sitting, said, reply.usage)

    async def _ask(self, sitting: _Sitting) -> Reply:
        facts = self.model.facts
        request = Request(
            messages=shortened(sitting.messages, facts),
            tools=tuple(tool.spec for tool in self._tools.values()),
            temperature=0.0 if facts.local else None,
            prefill=CELL_BEGINS if facts.led_by_prefill and sitting.mending else "",
        )
        sitting.step += 1

        def pass_on(text: str) -> None:
            self._tell(SpeechArrived(text=text))

        return await self.model.reply(request, on_text=pass_on)

    async def _run(self, sitting: _Sitting, said: Said, usage: Usage) -> None:
        """Run a cell and tell the model of it."""
        turn, step = sitting.turn, sitting.step
        self._tell(
            CellBegan(turn=turn, step=step, thought=said.thought, code=said.code, usage=usage)
        )
        repeated = said.code == sitting.last_code and not sitting.failures
        sitting.last_code = said.code
        ended = await self._carried_out(sitting, said.code)
        self._tell(ended)
        sitting.failures = sitting.failures + 1 if ended.failed else 0
        told = [observed(ended.observation, failed=ended.failed, small=self.model.facts.local)]
        sitting.mending = self.model.facts.local and ended.failed
        if sitting.failures > self._manners.repairs:
            told.append(user(_STUCK))
            sitting.mending = False
        elif step + 1 >= self._manners.steps:
            told.append(user(_TIRED))
            sitting.mending = False
        elif repeated:
            told.append(user(_AGAIN))
        self._hear(sitting, Message(role="assistant", text=said.as_written), *told)

    def _hear(self, sitting: _Sitting, *messages: Message) -> None:
        sitting.messages = (*sitting.messages, *messages)

    async def _carried_out(self, sitting: _Sitting, code: str) -> CellEnded:
        if objection := self._objection(code):
            return _lost(sitting, code, objection)
        before = await self._look_around()
        try:
            result = await self._notebook.run(code, self._on_output)
        except SandboxUnavailableError as error:
            return _lost(sitting, code, f"The interpreter is gone: {error}. It is started again.")
        # It has happened, so it is written down, whoever has lost patience meanwhile.
        artifacts: list[Exhibit] = []
        with anyio.CancelScope(shield=True):
            artifacts += await keep_shown(result.outputs, self._record)
            # A sandbox that is gone by now has taken only the files, which the next one gets.
            with suppress(SandboxUnavailableError):
                async with self._notebook.in_use() as used:
                    artifacts += await keep_written(used.sandbox, before, self._record)
        return CellEnded(
            turn=sitting.turn,
            step=sitting.step,
            code=code,
            observation=describe(result, artifacts),
            failed=not result.succeeded,
            kept=result.state == "kept",
            artifacts=tuple(artifacts),
            duration_s=result.execution.duration_s,
        )

    def _objection(self, code: str) -> str:
        if self._manners.policy != "block":
            return ""
        findings = self._screen(PurePosixPath("cell.py"), code.encode("utf-8", "replace"))
        lines = "\n".join(f"- line {found.line}: {found.explanation}" for found in findings)
        return f"It was not run, because the policy forbids what it does:\n{lines}" if lines else ""

    def _on_output(self, chunk: OutputChunk) -> None:
        self._tell(CellPrinted(text=chunk.data.decode("utf-8", errors="replace")))

    async def _look_around(self) -> Sizes:
        """See what is in the workspace; one that was lost since it was last used is made anew."""
        with suppress(SandboxUnavailableError):
            async with self._notebook.in_use() as used:
                return await look_around(used.sandbox)
        await self._ensure_open("it had ended")
        async with self._notebook.in_use() as used:
            return await look_around(used.sandbox)

    async def _ensure_open(self, why: str) -> None:
        """Have a notebook; one that is new gets what the old one had."""
        if self._notebook.is_open:
            return
        cells = self.history.kept_cells
        files = await self._record.files()
        results = await self._notebook.open(files, [cell.code for cell in cells])
        if cells:
            pairs = zip(cells, results, strict=True)
            failed = sum(not result.succeeded and not cell.failed for cell, result in pairs)
            self._tell(StateRebuilt(why=why, cells=len(cells), failed=failed))

    async def _use_tools(self, sitting: _Sitting, reply: Reply) -> None:
        answers: list[Message] = []
        usage = reply.usage
        for call in reply.message.tool_calls:
            answer, failed = await self._use(call)
            self._tell(
                ToolUsed(
                    turn=sitting.turn,
                    step=sitting.step,
                    thought=reply.message.text.strip(),
                    tool=call.name,
                    arguments=_arguments(call),
                    answer=answer,
                    failed=failed,
                    usage=usage,
                )
            )
            usage = Usage()  # told once, with the first
            answers.append(Message(role="tool", answers=call.id, text=answer))
        self._hear(sitting, reply.message, *answers)
        if sitting.step + 1 >= self._manners.steps:
            self._hear(sitting, user(_TIRED))

    async def _use(self, call: ToolCall) -> tuple[str, bool]:
        """Return what a tool answers, and whether that is a failure."""
        tool = self._tools.get(call.name)
        if tool is None or call.arguments is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return f"There is no such tool, or its arguments are no object. Tools: {known}.", True
        if not await self._is_allowed(tool, call):
            return f"`{call.name}` is not allowed here. Go on without it.", True
        await self._ensure_open("it had ended")
        try:
            async with self._notebook.in_use() as used:
                answer = await tool.call(call.arguments, used.sandbox, on_output=self._on_output)
        except (ToolError, SandboxUnavailableError) as error:
            return f"`{call.name}` failed: {error}", True
        return trim(answer, max_chars=_ANSWER_CHARS), False

    async def _is_allowed(self, tool: Tool, call: ToolCall) -> bool:
        approval = self._manners.approvals.get(tool.spec.name, "ask")
        if approval != "ask":
            return approval == "allow"
        ask = ToolAsk(
            tool=tool.spec.name, description=tool.spec.description, arguments=_arguments(call)
        )
        return await self._approve(ask)


def _lost(sitting: _Sitting, code: str, observation: str) -> CellEnded:
    """Tell of a cell that was not run, or took its interpreter with it."""
    return CellEnded(
        turn=sitting.turn,
        step=sitting.step,
        code=code,
        observation=observation,
        failed=True,
        kept=False,
        artifacts=(),
        duration_s=0.0,
    )


def _arguments(call: ToolCall) -> str:
    if call.arguments is None:
        return call.written
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _answer_of(said: Said, sitting: _Sitting) -> str:
    if said.thought:
        return said.thought
    return f"No answer after {sitting.step - 1} steps; what the cells printed stands above."


def _hinted(error: AssayError) -> str:
    return f"\nhint: {error.hint}" if error.hint else ""
