"""The turn loop of a chat session: the model runs cells, reads their results, and answers."""

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

import anyio

from assay.agent.prompt_builder import shortened, user
from assay.chat.config import Approve, ChatConfig, approve_nothing
from assay.chat.notebook import Notebook, Printer
from assay.chat.observations import (
    MOST_PICTURES,
    Seen,
    describe,
    interrupted,
    keep_shown,
    keep_written,
    listed,
    look_around,
    lost,
    pictures_in,
    preview,
)
from assay.chat.prompt import CELL_BEGINS, observed, opening
from assay.chat.reply import (
    CELL_TOOL,
    NO_CODE,
    NOT_RUN,
    Block,
    ChatReply,
    code_of,
    import_hint,
    read_reply,
    say_only,
    screened,
    takes_calls,
)
from assay.contracts.chat import (
    CellEnded,
    CellStarted,
    ChatEvent,
    FailureType,
    FileLoaded,
    History,
    ModelChosen,
    PackagesAdded,
    ReplyDelta,
    StateRebuilt,
    StateRestoring,
    StoredArtifact,
    ToolAsk,
    ToolUsed,
    TurnEnded,
    TurnError,
    TurnStarted,
    TurnStatus,
    TurnUndone,
)
from assay.contracts.errors import (
    AssayError,
    BudgetExceededError,
    ContextOverflowError,
    IsolationUnavailableError,
    ModelRefusedError,
    ModelUnavailableError,
    SandboxUnavailableError,
    ToolError,
    UsageError,
)
from assay.contracts.execution import CellResult, SandboxSpec
from assay.contracts.messages import Message, Picture, Reply, Request, ToolCall, Usage
from assay.contracts.ports import ChatLog, Model, Sandbox, Screen, Tool
from assay.text.formatting import trim


def turn_error(error: AssayError) -> TurnError:
    """Return the stored form of an error that ended a turn."""
    limited = isinstance(error, ModelUnavailableError | BudgetExceededError)
    retry_after_s = error.retry_after_s if limited else None
    return TurnError(
        type=_type_of(error), detail=str(error), hint=error.hint, retry_after_s=retry_after_s
    )


def _type_of(error: AssayError) -> FailureType:
    match error:
        case ModelUnavailableError():
            return "model-rate-limited" if error.rate_limited else "model-unavailable"
        case ContextOverflowError():
            return "context-too-long"
        case ModelRefusedError():
            return "model-refused"
        case BudgetExceededError():
            return "quota-exceeded"
        case SandboxUnavailableError() | IsolationUnavailableError():
            return "executor-unavailable"
        case _:
            return "failed"


_ANSWER_CHARS: Final = 8_000
_TIRED: Final = (
    "You have no more cells in this turn. Say in plain words, without code, what you found out, "
    "and what is missing."
)
_STUCK: Final = (
    "That has failed several times. Say in plain words, without code, what you found out, and "
    "what went wrong."
)
_FORBIDDEN: Final = "It was not run, because the policy forbids what it does:\n"
_WARNED: Final = "It was run, and the policy warns of what it does:\n"
_FIGURES: Final = "The newest figures of the cells:"
_AGAIN: Final = "That is the cell you ran before. Answer in plain words, without code."


@dataclass(slots=True, kw_only=True)
class _TurnContext:
    """The state of the current turn."""

    turn: int
    messages: tuple[Message, ...]
    step: int = 0
    failures: int = 0
    """Consecutive failed cells."""
    mending: bool = False
    """Start the next reply with a code fence; otherwise a small model makes up an answer."""
    last_code: str = ""
    failed_in: int = 0
    """The last step in which a cell failed."""
    pictures: tuple[Picture, ...] = ()
    """The newest figures, which the model has not received yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDeps:
    """The dependencies of a session, which `assay.chat.open_session` builds."""

    notebook: Notebook
    record: ChatLog
    screen: Screen
    tools: tuple[Tool, ...] = ()
    config: ChatConfig = field(default_factory=ChatConfig)
    approve: Approve = approve_nothing


class ChatSession:
    """One session: one history, one notebook, one model at a time, and one turn at a time."""

    def __init__(self, parts: ChatDeps, model: Model, history: History) -> None:
        self.model = model
        self.history = history
        self._notebook = parts.notebook
        self._record = parts.record
        self._screen = parts.screen
        self._tools = {tool.spec.name: tool for tool in parts.tools}
        self._config = parts.config
        self._approve = parts.approve
        self._scope: anyio.CancelScope | None = None

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox of the notebook, while it is open."""
        return self._notebook.sandbox

    async def say(self, message: str, instructions: str = "") -> TurnEnded:
        """Run one turn. An error ends the turn and is recorded in it; the session continues.

        `instructions` go into the system message of this turn only.

        Raises:
            UsageError: If the message is empty.
            JournalError: If the session can no longer be saved.
        """
        if not message.strip():
            raise UsageError("the message is empty", hint="say what you want to know")
        turn = self.history.begun + 1
        self._tell(TurnStarted(turn=turn, message=message))
        with anyio.CancelScope() as self._scope:
            try:
                return await self._answer(turn, instructions)
            except ContextOverflowError as error:
                return self._fail(turn, f"This has become too long for the model: {error}", error)
            except AssayError as error:
                return self._fail(turn, f"{error}{_hinted(error)}", error)
            except anyio.get_cancelled_exc_class():
                if not self._scope.cancel_called:
                    self._end(turn, "interrupted", "The turn was interrupted.")
                raise
        return self._end(turn, "interrupted", "The turn was interrupted.")

    def interrupt(self) -> None:
        """Interrupt the current turn, including a reply in progress or a running cell."""
        if self._scope is not None:
            self._scope.cancel()

    async def load(self, path: PurePosixPath, content: bytes) -> FileLoaded:
        """Write a user's file into the workspace, and store it for later interpreters.

        Raises:
            JournalError: If the file cannot be stored.
            WorkspaceError: If the file cannot be written into the workspace.
            SandboxUnavailableError: If no sandbox is open and none can be opened.
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
        """Remove the last turn; if it changed the state, rebuild the interpreter without its cells.

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

    async def add_packages(self, packages: tuple[str, ...]) -> PackagesAdded:
        """Install packages for cells, in a new interpreter that runs the session's cells again.

        Raises:
            UsageError: If a package name is malformed.
            PackageError: If one cannot be installed; everything stays as it was.
            SandboxUnavailableError: If no sandbox can be opened, or the backend installs nothing.
        """
        given = self._notebook.equipment
        wanted = SandboxSpec(
            packages=tuple(dict.fromkeys((*given.packages, *packages))), hosts=given.hosts
        )
        cells = self.history.kept_cells
        files = await self._record.files()
        codes = [cell.code for cell in cells]
        results = await self._notebook.equip(wanted, files, codes, on_cell=self._on_restoring)
        added = PackagesAdded(packages=packages)
        self._tell(added)
        self._tell_rebuilt("packages were added", cells, results)
        return added

    def choose(self, model: Model) -> None:
        """Use another model from the next reply on."""
        self.model = model
        if self.history.model != model.name:
            self._tell(ModelChosen(model=model.name))

    async def wake(self) -> None:
        """Open the notebook before its first use; raises like `Notebook.open`."""
        await self._ensure_open("the session was closed")

    def _tell(self, event: ChatEvent) -> None:
        self._record.emit(event)
        self.history = self.history.after(event)

    def _end(
        self, turn: int, status: TurnStatus, text: str, usage: Usage | None = None
    ) -> TurnEnded:
        ended = TurnEnded(turn=turn, status=status, text=text, usage=usage or Usage())
        self._tell(ended)
        return ended

    def _fail(self, turn: int, text: str, error: AssayError) -> TurnEnded:
        ended = TurnEnded(
            turn=turn, status="failed", text=text, usage=Usage(), error=turn_error(error)
        )
        self._tell(ended)
        return ended

    async def _answer(self, turn: int, instructions: str) -> TurnEnded:
        by_calls = self._by_calls
        messages = opening(
            self.history, self.model.facts, by_calls=by_calls, instructions=instructions
        )
        sitting = _TurnContext(turn=turn, messages=messages)
        while True:
            reply = await self._ask(sitting)
            text, calls = reply.message.text, reply.message.tool_calls
            said = say_only(text) if by_calls else read_reply(text)
            last = sitting.step >= self._config.steps
            if last or not (calls or said.blocks):
                status = "answered" if said.prose else "out_of_steps"
                return self._end(turn, status, _answer_of(said, sitting), reply.usage)
            if calls:
                await self._use_tools(sitting, reply, said)
            else:
                told = await self._run_blocks(sitting, said, reply.usage)
                self._hear(sitting, Message(role="assistant", text=said.as_written), *told)

    @property
    def _by_calls(self) -> bool:
        return takes_calls(self.model.facts, self._config.cells)

    async def _ask(self, sitting: _TurnContext) -> Reply:
        facts = self.model.facts
        tools = tuple(tool.spec for tool in self._tools.values())
        request = Request(
            messages=shortened(sitting.messages, facts),
            tools=(CELL_TOOL, *tools) if self._by_calls else tools,
            temperature=0.0 if facts.local else None,
            prefill=CELL_BEGINS if facts.supports_prefill and sitting.mending else "",
        )
        sitting.step += 1

        def pass_on(text: str) -> None:
            self._tell(ReplyDelta(text=text))

        return await self.model.reply(request, on_text=pass_on)

    async def _run_blocks(
        self, sitting: _TurnContext, said: ChatReply, usage: Usage
    ) -> tuple[Message, ...]:
        """Run the cells of a reply in order; returns the messages with their results."""
        cells: list[CellEnded] = []
        for number, block in enumerate(said.blocks, 1):
            remark = said.after if number == len(said.blocks) else ""
            cells.append(await self._run(sitting, block, usage, remark=remark))
            usage = Usage()  # reported only once, with the first
        failed = any(cell.failed for cell in cells)
        observations = [cell.observation for cell in cells]
        seen = observed(observations, failed=failed, small=self.model.facts.local)
        seen = replace(seen, pictures=self._take_pictures(sitting))
        return (seen, *self._after_cells(sitting, cells))

    async def _run(
        self, sitting: _TurnContext, block: Block, usage: Usage, *, remark: str = ""
    ) -> CellEnded:
        """Run a cell, unless an earlier cell of the same reply has failed."""
        turn, step, code = sitting.turn, sitting.step, block.code
        self._tell(
            CellStarted(
                turn=turn, step=step, thought=block.before, code=code, usage=usage, remark=remark
            )
        )
        if sitting.failed_in == step:
            ended = lost(turn, step, code, NOT_RUN)
        else:
            ended = await self._screened(sitting, code)
        if ended.failed:
            sitting.failed_in = step
        self._tell(ended)
        return ended

    def _after_cells(self, sitting: _TurnContext, cells: list[CellEnded]) -> tuple[Message, ...]:
        """Return further instructions for the model after the cells of one reply."""
        failed = any(cell.failed for cell in cells)
        repeated = cells[-1].code == sitting.last_code and not sitting.failures
        sitting.last_code = cells[-1].code
        sitting.failures = sitting.failures + 1 if failed else 0
        sitting.mending = self.model.facts.local and failed
        if sitting.failures > self._config.repairs:
            sitting.mending = False
            return (user(_STUCK),)
        if sitting.step + 1 >= self._config.steps:
            sitting.mending = False
            return (user(_TIRED),)
        return (user(_AGAIN),) if repeated else ()

    def _take_pictures(self, sitting: _TurnContext) -> tuple[Picture, ...]:
        taken, sitting.pictures = sitting.pictures, ()
        return taken if self.model.facts.sees_pictures else ()

    def _hear(self, sitting: _TurnContext, *messages: Message) -> None:
        earlier = sitting.messages
        if any(message.pictures for message in messages):
            # Only the newest figures are sent, because each one costs tokens in every request.
            earlier = tuple(replace(message, pictures=()) for message in earlier)
        sitting.messages = (*earlier, *messages)

    async def _screened(self, sitting: _TurnContext, code: str) -> CellEnded:
        if self._config.screening == "off":
            return await self._carried_out(sitting, code)
        found = listed(screened(self._screen, code))
        if found and self._config.screening == "block":
            return lost(sitting.turn, sitting.step, code, _FORBIDDEN + found)
        ended = await self._carried_out(sitting, code)
        return _noted(ended, _WARNED + found) if found else ended

    async def _carried_out(self, sitting: _TurnContext, code: str) -> CellEnded:
        before = await self._look_around()
        printer = Printer(self._tell)
        try:
            result = await self._notebook.run(code, printer)
        except anyio.get_cancelled_exc_class():
            printer.end()
            self._tell(lost(sitting.turn, sitting.step, code, interrupted(printer.printed)))
            raise
        except SandboxUnavailableError as error:
            gone = f"The interpreter is gone: {error}. It is started again."
            printed = printer.end()
            text = f"{printed.rstrip()}\n{gone}" if printed else gone
            return lost(sitting.turn, sitting.step, code, text)
        printer.end()
        # The cell has run, so its results are recorded even if the turn is cancelled.
        artifacts: list[StoredArtifact] = []
        with anyio.CancelScope(shield=True):
            artifacts += await self._made_by(result, before)
        sitting.pictures = (*sitting.pictures, *pictures_in(result.outputs))[-MOST_PICTURES:]
        return _ended(sitting, code, result, artifacts)

    async def _made_by(self, result: CellResult, before: Seen) -> list[StoredArtifact]:
        """Store the figures, tables and files that a cell produced."""
        made = await keep_shown(result.outputs, self._record)
        # If the sandbox is gone, only the files are lost; the next sandbox gets the stored ones.
        with suppress(SandboxUnavailableError):
            async with self._notebook.in_use() as used:
                made += await keep_written(used.sandbox, before, self._record)
        return made

    async def _look_around(self) -> Seen:
        """Return the state of the workspace; reopen a notebook whose sandbox is gone."""
        with suppress(SandboxUnavailableError):
            async with self._notebook.in_use() as used:
                return await look_around(used.sandbox)
        await self._ensure_open("it had ended")
        async with self._notebook.in_use() as used:
            return await look_around(used.sandbox)

    async def _ensure_open(self, why: str) -> None:
        """Open the notebook if it is closed, and restore its files and cells."""
        if self._notebook.is_open:
            return
        cells = self.history.kept_cells
        files = await self._record.files()
        codes = [cell.code for cell in cells]
        results = await self._notebook.open(files, codes, on_cell=self._on_restoring)
        self._tell_rebuilt(why, cells, results)

    def _on_restoring(self, cell: int, cells: int) -> None:
        self._tell(StateRestoring(cell=cell, cells=cells))

    def _tell_rebuilt(
        self, why: str, cells: tuple[CellEnded, ...], results: tuple[CellResult, ...]
    ) -> None:
        if cells:
            pairs = zip(cells, results, strict=True)
            failed = sum(not result.succeeded and not cell.failed for cell, result in pairs)
            self._tell(StateRebuilt(why=why, cells=len(cells), failed=failed))

    async def _use_tools(self, sitting: _TurnContext, reply: Reply, said: ChatReply) -> None:
        """Carry out the tool calls of a reply in order, after its code blocks."""
        told: list[Message] = []
        thought, usage = said.text, reply.usage
        if said.blocks:
            told += await self._run_blocks(sitting, said, usage)
            thought, usage = "", Usage()
        answers: list[Message] = []
        cells: list[CellEnded] = []
        for call in reply.message.tool_calls:
            if self._by_calls and call.name == CELL_TOOL.name and (code := code_of(call)):
                cells.append(await self._run(sitting, Block(before=thought, code=code), usage))
                answer = cells[-1].observation
            else:
                answer = await self._tool_answer(sitting, call, thought, usage)
            thought, usage = "", Usage()  # reported only once, with the first
            answers.append(Message(role="tool", answers=call.id, text=answer))
        if pictures := self._take_pictures(sitting):
            # Not every API accepts images in a tool result.
            told.append(replace(user(_FIGURES), pictures=pictures))
        if cells:
            told += self._after_cells(sitting, cells)
        elif not said.blocks and sitting.step + 1 >= self._config.steps:
            told.append(user(_TIRED))
        self._hear(sitting, reply.message, *answers, *told)

    async def _tool_answer(
        self, sitting: _TurnContext, call: ToolCall, thought: str, usage: Usage
    ) -> str:
        answer, failed = await self._use(call)
        self._tell(
            ToolUsed(
                turn=sitting.turn,
                step=sitting.step,
                thought=thought,
                tool=call.name,
                arguments=_arguments(call),
                answer=answer,
                failed=failed,
                usage=usage,
            )
        )
        return answer

    async def _use(self, call: ToolCall) -> tuple[str, bool]:
        """Return the answer of a tool, and whether the call failed."""
        if self._by_calls and call.name == CELL_TOOL.name:
            return NO_CODE, True
        tool = self._tools.get(call.name)
        if tool is None or call.arguments is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return f"There is no such tool, or its arguments are no object. Tools: {known}.", True
        if not await self._is_allowed(tool, call):
            return f"`{call.name}` is not allowed here. Go on without it.", True
        await self._ensure_open("it had ended")
        printer = Printer(self._tell, keep=False)
        try:
            async with self._notebook.in_use() as used:
                answer = await tool.call(call.arguments, used.sandbox, on_output=printer)
        except (ToolError, SandboxUnavailableError) as error:
            return f"`{call.name}` failed: {error}", True
        return trim(answer, max_chars=_ANSWER_CHARS), False

    async def _is_allowed(self, tool: Tool, call: ToolCall) -> bool:
        approval = self._config.approvals.get(tool.spec.name, "ask")
        if approval != "ask":
            return approval == "allow"
        ask = ToolAsk(
            tool=tool.spec.name, description=tool.spec.description, arguments=_arguments(call)
        )
        return await self._approve(ask)


def _ended(
    sitting: _TurnContext, code: str, result: CellResult, artifacts: list[StoredArtifact]
) -> CellEnded:
    ended = CellEnded(
        turn=sitting.turn,
        step=sitting.step,
        code=code,
        observation=describe(result, artifacts),
        failed=not result.succeeded,
        kept=result.state == "kept",
        artifacts=tuple(artifacts),
        duration_s=result.execution.duration_s,
    )
    hint = import_hint(result)
    return _noted(ended, hint) if hint else ended


def _noted(ended: CellEnded, note: str) -> CellEnded:
    return replace(ended, observation=f"{ended.observation}\n{note}")


def _arguments(call: ToolCall) -> str:
    if call.arguments is None:
        return call.written
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _answer_of(said: ChatReply, sitting: _TurnContext) -> str:
    if said.prose:
        return said.text
    return f"No answer after {sitting.step - 1} steps; what the cells printed stands above."


def _hinted(error: AssayError) -> str:
    return f"\nhint: {error.hint}" if error.hint else ""
