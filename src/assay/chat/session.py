"""The turn loop of a chat session: the model runs cells, reads their results, and answers."""

import json
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

import anyio
from anyio import to_thread

from assay.agent.compaction import compacted
from assay.agent.prompt_builder import user
from assay.chat.notebook import Notebook, Printer
from assay.chat.observations import (
    MOST_PICTURES,
    Seen,
    describe,
    interrupted,
    keep_shown,
    keep_written,
    look_around,
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
    screened,
    takes_calls,
)
from assay.contracts.chat import (
    CellEnded,
    CellStarted,
    ChatEvent,
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
from assay.contracts.execution import CellResult
from assay.contracts.messages import Message, Picture, Reply, Request, ToolCall, Usage
from assay.contracts.ports import ChatLog, Model, Screen
from assay.settings.load import ChatSettings
from assay.text.formatting import trim
from assay.tools.discover import RegisteredTool


def turn_error(error: AssayError) -> TurnError:
    """Return the stored form of an error that ended a turn."""
    retry_after_s: float | None = None
    match error:
        case ModelUnavailableError():
            kind = "model-rate-limited" if error.rate_limited else "model-unavailable"
            retry_after_s = error.retry_after_s
        case ContextOverflowError():
            kind = "context-too-long"
        case ModelRefusedError():
            kind = "model-refused"
        case BudgetExceededError():
            kind = "quota-exceeded"
            retry_after_s = error.retry_after_s
        case SandboxUnavailableError() | IsolationUnavailableError():
            kind = "executor-unavailable"
        case _:
            kind = "failed"
    return TurnError(type=kind, detail=str(error), hint=error.hint, retry_after_s=retry_after_s)


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


Approve = Callable[[ToolAsk], Awaitable[bool]]
"""Asks the user; False blocks the tool call."""
LARGEST_FILE: Final = 256 << 20


async def approve_nothing(ask: ToolAsk) -> bool:
    """Reject every tool call, because there is no user to ask."""
    del ask
    return False


@dataclass(slots=True, kw_only=True)
class _Turn:
    """The state of the current turn."""

    number: int
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

    def cell_ended(
        self,
        code: str,
        observation: str,
        result: CellResult | None = None,
        artifacts: Sequence[StoredArtifact] = (),
    ) -> CellEnded:
        """Return the event for a cell.

        Without a result, the cell did not run, did not end, or crashed its interpreter.
        """
        return CellEnded(
            turn=self.number,
            step=self.step,
            code=code,
            observation=observation,
            failed=result is None or not result.succeeded,
            kept=result is not None and result.state == "kept",
            artifacts=tuple(artifacts),
            duration_s=result.execution.duration_s if result else 0.0,
        )

    def add(self, *messages: Message) -> None:
        """Add messages for the next request."""
        earlier = self.messages
        if any(message.pictures for message in messages):
            # Only the newest figures are sent, because each one costs tokens in every request.
            earlier = tuple(replace(message, pictures=()) for message in earlier)
        self.messages = (*earlier, *messages)


@dataclass(slots=True, kw_only=True)
class ChatSession:
    """One session: one history, one notebook, one model at a time, and one turn at a time."""

    model: Model
    history: History
    notebook: Notebook
    log: ChatLog
    screen: Screen
    settings: ChatSettings
    tools: Mapping[str, RegisteredTool]
    open_model: Callable[[str], Awaitable[Model]]
    approve: Approve = approve_nothing
    _scope: anyio.CancelScope | None = None

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
                text = f"This has become too long for the model: {error}"
                return self._end(turn, "failed", text, error=error)
            except AssayError as error:
                hint = f"\nhint: {error.hint}" if error.hint else ""
                return self._end(turn, "failed", f"{error}{hint}", error=error)
            except anyio.get_cancelled_exc_class():
                if not self._scope.cancel_called:
                    self._end(turn, "interrupted", "The turn was interrupted.")
                raise
        return self._end(turn, "interrupted", "The turn was interrupted.")

    def interrupt(self) -> None:
        """Interrupt the current turn, including a reply in progress or a running cell."""
        if self._scope is not None:
            self._scope.cancel()

    async def load_file(self, source: Path) -> FileLoaded:
        """Copy a file from this machine into the workspace, under its own name.

        Raises:
            UsageError: If the file cannot be read, or is too large.
            WorkspaceError: If the file does not fit into the workspace.
        """
        content = await to_thread.run_sync(read_upload, source)
        return await self.load(PurePosixPath(source.name), content)

    async def load(self, path: PurePosixPath, content: bytes) -> FileLoaded:
        """Write a user's file into the workspace, and store it for later interpreters.

        Raises:
            JournalError: If the file cannot be stored.
            WorkspaceError: If the file cannot be written into the workspace.
            SandboxUnavailableError: If no sandbox is open and none can be opened.
        """
        await self._look_around()
        async with self.notebook.in_use() as (sandbox, _):
            await sandbox.write_file(path, content)
            await self.log.keep_file(path, content)
            about = await preview(sandbox, path, content)
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
            await self.notebook.close()
            await self._rebuild("a turn was undone")
        return undone

    async def add_packages(self, packages: tuple[str, ...]) -> None:
        """Install packages for cells, in a new interpreter that runs the session's cells again.

        Raises:
            UsageError: If a package name is malformed.
            PackageError: If one cannot be installed; everything stays as it was.
            SandboxUnavailableError: If no sandbox can be opened, or the backend installs nothing.
        """
        await self._rebuild("packages were added", PackagesAdded(packages=packages))

    async def use_model(self, name: str) -> None:
        """Switch to another model for later replies; if it cannot be opened, the old one stays."""
        self.choose(await self.open_model(name))

    def choose(self, model: Model) -> None:
        """Use another model from the next reply on."""
        self.model = model
        if self.history.model != model.name:
            self._tell(ModelChosen(model=model.name))

    async def wake(self) -> None:
        """Open the notebook before its first use; raises like `Notebook.open`."""
        await self._ensure_open("the session was closed")

    def _tell(self, event: ChatEvent) -> None:
        self.log.emit(event)
        self.history = self.history.after(event)

    def _end(
        self,
        turn: int,
        status: TurnStatus,
        text: str,
        *,
        usage: Usage | None = None,
        error: AssayError | None = None,
    ) -> TurnEnded:
        ended = TurnEnded(
            turn=turn,
            status=status,
            text=text,
            usage=usage or Usage(),
            error=turn_error(error) if error else None,
        )
        self._tell(ended)
        return ended

    async def _answer(self, number: int, instructions: str) -> TurnEnded:
        by_calls = self._by_calls
        messages = opening(
            self.history, self.model.info, by_calls=by_calls, instructions=instructions
        )
        turn = _Turn(number=number, messages=messages)
        while True:
            reply = await self._ask(turn)
            text, calls = reply.message.text, reply.message.tool_calls
            # If cells are calls, code blocks in the text are shown and not run.
            said = (
                ChatReply(text=text.strip(), after=text.strip()) if by_calls else read_reply(text)
            )
            if turn.step >= self.settings.steps or not (calls or said.blocks):
                if said.prose:
                    return self._end(number, "answered", said.text, usage=reply.usage)
                text = (
                    f"No answer after {turn.step - 1} steps; what the cells printed stands above."
                )
                return self._end(number, "out_of_steps", text, usage=reply.usage)
            if calls:
                await self._use_tools(turn, reply, said)
            else:
                told = await self._run_blocks(turn, said, reply.usage)
                turn.add(Message(role="assistant", text=said.as_written), *told)

    @property
    def _by_calls(self) -> bool:
        return takes_calls(self.model.info, self.settings.cells)

    async def _ask(self, turn: _Turn) -> Reply:
        info = self.model.info
        tools = tuple(each.tool.spec for each in self.tools.values())
        request = Request(
            messages=compacted(turn.messages, info),
            tools=(CELL_TOOL, *tools) if self._by_calls else tools,
            temperature=0.0 if info.small else None,
            prefill=CELL_BEGINS if info.supports_prefill and turn.mending else "",
        )
        turn.step += 1
        return await self.model.reply(
            request, on_text=lambda text: self._tell(ReplyDelta(text=text))
        )

    async def _run_blocks(self, turn: _Turn, said: ChatReply, usage: Usage) -> tuple[Message, ...]:
        """Run the cells of a reply in order; returns the messages with their results."""
        cells: list[CellEnded] = []
        for number, block in enumerate(said.blocks, 1):
            remark = said.after if number == len(said.blocks) else ""
            cells.append(await self._run(turn, block, usage, remark=remark))
            usage = Usage()  # reported only once, with the first
        failed = any(cell.failed for cell in cells)
        observations = [cell.observation for cell in cells]
        seen = observed(observations, failed=failed, small=self.model.info.small)
        seen = replace(seen, pictures=self._take_pictures(turn))
        return (seen, *self._after_cells(turn, cells))

    async def _run(self, turn: _Turn, block: Block, usage: Usage, *, remark: str = "") -> CellEnded:
        """Run a cell, unless an earlier cell of the same reply failed or screening blocks it."""
        code, screening = block.code, self.settings.screening
        self._tell(
            CellStarted(
                turn=turn.number,
                step=turn.step,
                thought=block.before,
                code=code,
                usage=usage,
                remark=remark,
            )
        )
        if turn.failed_in == turn.step:
            ended = turn.cell_ended(code, NOT_RUN)
        else:
            found = "" if screening == "off" else screened(self.screen, code)
            if found and screening == "block":
                ended = turn.cell_ended(code, _FORBIDDEN + found)
            else:
                ended = await self._execute(turn, code)
                if found:
                    ended = replace(ended, observation=f"{ended.observation}\n{_WARNED}{found}")
        if ended.failed:
            turn.failed_in = turn.step
        self._tell(ended)
        return ended

    def _after_cells(self, turn: _Turn, cells: list[CellEnded]) -> tuple[Message, ...]:
        """Return further instructions for the model after the cells of one reply."""
        failed = any(cell.failed for cell in cells)
        repeated = cells[-1].code == turn.last_code and not turn.failures
        turn.last_code = cells[-1].code
        turn.failures = turn.failures + 1 if failed else 0
        turn.mending = self.model.info.small and failed
        if turn.failures > self.settings.repairs:
            turn.mending = False
            return (user(_STUCK),)
        if turn.step + 1 >= self.settings.steps:
            turn.mending = False
            return (user(_TIRED),)
        return (user(_AGAIN),) if repeated else ()

    def _take_pictures(self, turn: _Turn) -> tuple[Picture, ...]:
        taken, turn.pictures = turn.pictures, ()
        return taken if self.model.info.sees_pictures else ()

    async def _execute(self, turn: _Turn, code: str) -> CellEnded:
        before = await self._look_around()
        printer = Printer(self._tell)
        try:
            result = await self.notebook.run(code, printer)
        except anyio.get_cancelled_exc_class():
            self._tell(turn.cell_ended(code, interrupted(printer.end())))
            raise
        except SandboxUnavailableError as error:
            gone = f"The interpreter is gone: {error}. It is started again."
            printed = printer.end()
            return turn.cell_ended(code, f"{printed.rstrip()}\n{gone}" if printed else gone)
        printer.end()
        # The cell has run, so its results are recorded even if the turn is cancelled.
        artifacts: list[StoredArtifact] = []
        with anyio.CancelScope(shield=True):
            artifacts += await keep_shown(result.outputs, self.log)
            # If the sandbox is gone, only the files are lost; the next one gets the stored files.
            with suppress(SandboxUnavailableError):
                async with self.notebook.in_use() as (sandbox, _):
                    artifacts += await keep_written(sandbox, before, self.log)
        turn.pictures = (*turn.pictures, *pictures_in(result.outputs))[-MOST_PICTURES:]
        observation = describe(result, artifacts)
        if hint := import_hint(result):
            observation += f"\n{hint}"
        return turn.cell_ended(code, observation, result, artifacts)

    async def _look_around(self) -> Seen:
        """Return the state of the workspace; reopen a notebook whose sandbox is gone."""
        with suppress(SandboxUnavailableError):
            async with self.notebook.in_use() as (sandbox, _):
                return await look_around(sandbox)
        await self._ensure_open("it had ended")
        async with self.notebook.in_use() as (sandbox, _):
            return await look_around(sandbox)

    async def _ensure_open(self, why: str) -> None:
        if self.notebook.sandbox is None:
            await self._rebuild(why)

    async def _rebuild(self, why: str, added: PackagesAdded | None = None) -> None:
        """Open a new interpreter with the session's files, packages and cells."""
        cells = self.history.kept_cells
        results = await self.notebook.open(
            await self.log.files(),
            [cell.code for cell in cells],
            packages=added.packages if added else (),
            on_cell=lambda cell, total: self._tell(StateRestoring(cell=cell, cells=total)),
        )
        if added:
            self._tell(added)
        if cells:
            pairs = zip(cells, results, strict=True)
            failed = sum(not result.succeeded and not cell.failed for cell, result in pairs)
            self._tell(StateRebuilt(why=why, cells=len(cells), failed=failed))

    async def _use_tools(self, turn: _Turn, reply: Reply, said: ChatReply) -> None:
        """Carry out the tool calls of a reply in order, after its code blocks."""
        told: list[Message] = []
        thought, usage = said.text, reply.usage
        if said.blocks:
            told += await self._run_blocks(turn, said, usage)
            thought, usage = "", Usage()
        answers: list[Message] = []
        cells: list[CellEnded] = []
        for call in reply.message.tool_calls:
            if self._by_calls and call.name == CELL_TOOL.name and (code := code_of(call)):
                cells.append(await self._run(turn, Block(before=thought, code=code), usage))
                answer = cells[-1].observation
            else:
                answer, failed = await self._call_tool(call)
                self._tell(
                    ToolUsed(
                        turn=turn.number,
                        step=turn.step,
                        thought=thought,
                        tool=call.name,
                        arguments=_arguments(call),
                        answer=answer,
                        failed=failed,
                        usage=usage,
                    )
                )
            thought, usage = "", Usage()  # reported only once, with the first
            answers.append(Message(role="tool", answers=call.id, text=answer))
        if pictures := self._take_pictures(turn):
            # Not every API accepts images in a tool result.
            told.append(replace(user(_FIGURES), pictures=pictures))
        if cells:
            told += self._after_cells(turn, cells)
        elif not said.blocks and turn.step + 1 >= self.settings.steps:
            told.append(user(_TIRED))
        turn.add(reply.message, *answers, *told)

    async def _call_tool(self, call: ToolCall) -> tuple[str, bool]:
        """Return the answer of a tool, and whether the call failed."""
        if self._by_calls and call.name == CELL_TOOL.name:
            return NO_CODE, True
        registered = self.tools.get(call.name)
        if registered is None or call.arguments is None:
            known = ", ".join(sorted(self.tools)) or "none"
            return f"There is no such tool, or its arguments are no object. Tools: {known}.", True
        tool, allowed = registered.tool, registered.approval == "allow"
        if registered.approval == "ask":
            ask = ToolAsk(
                tool=tool.spec.name, description=tool.spec.description, arguments=_arguments(call)
            )
            allowed = await self.approve(ask)
        if not allowed:
            return f"`{call.name}` is not allowed here. Go on without it.", True
        await self._ensure_open("it had ended")
        printer = Printer(self._tell, keep=False)
        try:
            async with self.notebook.in_use() as (sandbox, _):
                answer = await tool.call(call.arguments, sandbox, on_output=printer)
        except (ToolError, SandboxUnavailableError) as error:
            return f"`{call.name}` failed: {error}", True
        return trim(answer, max_chars=_ANSWER_CHARS), False


def _arguments(call: ToolCall) -> str:
    if call.arguments is None:
        return call.written
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def read_upload(source: Path) -> bytes:
    """Read a file that the user loads.

    Raises:
        UsageError: If it cannot be read, is not a file, or is too large.
    """
    try:
        status = source.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{str(source)!r} is a folder", hint="name a file")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{str(source)!r} is a device or a pipe", hint="name a file")
        if status.st_size > LARGEST_FILE:
            raise UsageError(
                f"{str(source)!r} holds more than {LARGEST_FILE >> 20} MB",
                hint="load a part of it",
            )
        return source.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {str(source)!r}", hint="check the path") from error
    except OSError as error:
        raise UsageError(f"{str(source)!r} cannot be read: {error.strerror}") from error
