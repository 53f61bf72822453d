import base64
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Literal

import anyio
import anyio.abc
import pytest

from assay.asyncx.owned_context import OwnedContext, open_task_group
from assay.chat.notebook import Notebook
from assay.chat.reply import CellForm
from assay.chat.session import Approve, ChatSession, approve_nothing
from assay.contracts.chat import (
    ArtifactSource,
    CellEnded,
    CellOutputDelta,
    CellStarted,
    ChatEvent,
    History,
    PackagesAdded,
    StateRebuilt,
    StateRestoring,
    StoredArtifact,
    ToolAsk,
    ToolUsed,
    TurnEnded,
    history_of,
)
from assay.contracts.errors import (
    ModelUnavailableError,
    PackageError,
    SandboxUnavailableError,
    UsageError,
)
from assay.contracts.execution import (
    DEFAULT_SPEC,
    CellResult,
    ExecutionResult,
    Limits,
    OutputChunk,
    Program,
    PythonCode,
    Reason,
    RichOutput,
    SandboxSpec,
)
from assay.contracts.messages import Message, Reply
from assay.contracts.ports import Model, OnOutput, Tool
from assay.contracts.workspace import Tree, TreeFile
from assay.settings.load import ChatSettings
from assay.settings.sections import Approval
from assay.tools.discover import RegisteredTool
from assay.tools.workspace import read_file
from tests.doubles.fake_sandbox import FakeBackend, FakeSandbox, answer_with
from tests.doubles.scripted_model import INFO, ScriptedModel, calls_tool, says

ADD = "Let me add.\n```python\nprint(1 + 1)\n```\nIt printed 99."


class MemoryRecord:
    """A `ChatLog` that keeps everything in memory."""

    def __init__(self) -> None:
        self.events: list[ChatEvent] = []
        self.put: dict[PurePosixPath, TreeFile] = {}
        self.exhibits: dict[str, bytes] = {}

    def emit(self, event: ChatEvent) -> None:
        self.events.append(event)

    async def settle(self) -> None:
        pass

    async def keep_file(self, path: PurePosixPath, content: bytes) -> None:
        self.put[path] = TreeFile(content)

    async def files(self) -> Tree:
        return Tree(files=self.put)

    async def keep_exhibit(
        self, name: str, content: bytes, *, media_type: str, source: ArtifactSource, path: str = ""
    ) -> StoredArtifact:
        self.exhibits[name] = content
        return StoredArtifact(
            name=name,
            media_type=media_type,
            size_bytes=len(content),
            sha256="",
            source=source,
            path=path,
        )


def _no_findings(path: PurePosixPath, content: bytes) -> tuple[()]:
    del path, content
    return ()


async def _no_other_model(name: str) -> Model:
    raise ModelUnavailableError(f"no model {name}")


class Chat:
    """A chat session with doubles around it."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        model: ScriptedModel,
        *,
        answer: Callable[[Program, FakeSandbox], ExecutionResult] | None = None,
        tools: tuple[Tool, ...] = (),
        settings: ChatSettings | None = None,
        approval: Approval = "ask",
        approve: Approve = approve_nothing,
        cells: CellForm = "blocks",
    ) -> None:
        self.record = MemoryRecord()
        self.model = model
        self.programs: list[str] = []
        self._answer = answer

        def keep(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
            assert isinstance(program, PythonCode)
            self.programs.append(program.source.decode())
            return self._answer(program, sandbox) if self._answer else answer_with("2\n")

        self.notebook = Notebook(
            backend=FakeBackend(answer=keep), limits=Limits(), owner=OwnedContext(tasks)
        )
        self.session = ChatSession(
            model=model,
            history=History(),
            notebook=self.notebook,
            log=self.record,
            screen=_no_findings,
            settings=(settings or ChatSettings()).model_copy(update={"cells": cells}),
            tools={
                tool.spec.name: RegisteredTool(tool=tool, origin="assay", approval=approval)
                for tool in tools
            },
            open_model=_no_other_model,
            approve=approve,
        )

    def told(self, kind: type[ChatEvent]) -> list[ChatEvent]:
        return [event for event in self.record.events if isinstance(event, kind)]


@pytest.fixture(name="tasks")
async def _tasks() -> AsyncGenerator[anyio.abc.TaskGroup]:
    async with open_task_group() as tasks:
        yield tasks


async def test_a_reply_without_code_is_the_answer(tasks: anyio.abc.TaskGroup) -> None:
    chat = Chat(tasks, ScriptedModel([says("Good morning.")]))
    ended = await chat.session.say("hello")
    assert (ended.status, ended.text) == ("answered", "Good morning.")
    assert not chat.programs


async def test_code_is_run_and_what_the_model_made_up_after_it_is_forgotten(
    tasks: anyio.abc.TaskGroup,
) -> None:
    chat = Chat(tasks, ScriptedModel([says(ADD), says("It is 2.")]))
    ended = await chat.session.say("what is 1 + 1?")
    assert ended.text == "It is 2."
    assert chat.programs[-1] == "print(1 + 1)"
    told = "\n".join(message.text for message in chat.model.asked[-1].messages)
    assert "It printed 99" not in told
    assert "Output of the cell:\n2" in told


async def test_thought_code_and_observation_are_kept_apart(tasks: anyio.abc.TaskGroup) -> None:
    chat = Chat(tasks, ScriptedModel([says(ADD), says("It is 2.")]))
    await chat.session.say("what is 1 + 1?")
    (began,), (cell,) = chat.told(CellStarted), chat.told(CellEnded)
    assert isinstance(began, CellStarted)
    assert isinstance(cell, CellEnded)
    assert (began.thought, began.code, cell.observation) == (
        "Let me add.",
        "print(1 + 1)",
        "2",
    )


async def test_a_failing_cell_is_shown_to_the_model_which_repairs_it(
    tasks: anyio.abc.TaskGroup,
) -> None:
    results = iter([answer_with(), answer_with(stderr="NameError: x", exit_code=1)])

    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del program, sandbox
        return next(results, answer_with("3\n"))

    replies = [says("```python\nprint(x)\n```"), says("```python\nprint(3)\n```"), says("3.")]
    chat = Chat(tasks, ScriptedModel(replies), answer=answer)
    ended = await chat.session.say("print x")
    assert ended.text == "3."
    assert [cell.failed for cell in chat.session.history.turns[0].cells] == [True, False]
    assert any("NameError: x" in message.text for message in chat.model.asked[1].messages)


async def test_a_model_that_keeps_failing_is_told_to_say_what_is_wrong(
    tasks: anyio.abc.TaskGroup,
) -> None:
    failing = [says(f"```python\nprint(x{number})\n```") for number in range(4)]
    chat = Chat(
        tasks,
        ScriptedModel([*failing, says("There is no x.")]),
        answer=lambda program, _: answer_with(
            exit_code=1 if b"print(x" in getattr(program, "source", b"") else 0
        ),
        settings=ChatSettings(steps=8, repairs=3),
    )
    ended = await chat.session.say("print x")
    assert ended.text == "There is no x."
    assert "failed several times" in chat.model.asked[-1].messages[-1].text


async def test_after_the_last_step_code_is_not_run_any_more(tasks: anyio.abc.TaskGroup) -> None:
    code = [says(f"```python\nprint({number})\n```") for number in range(5)]
    chat = Chat(tasks, ScriptedModel(code), settings=ChatSettings(steps=3))
    ended = await chat.session.say("go on for ever")
    assert ended.status == "out_of_steps"
    assert len(chat.session.history.turns[0].cells) == 2


async def test_a_model_that_cannot_answer_ends_the_turn_and_not_the_conversation(
    tasks: anyio.abc.TaskGroup,
) -> None:
    broken = ModelUnavailableError("nobody answers", hint="wait")
    chat = Chat(tasks, ScriptedModel([broken, says("Here I am.")]))
    first = await chat.session.say("hello?")
    second = await chat.session.say("hello?")
    assert (first.status, second.text) == ("failed", "Here I am.")
    assert "nobody answers" in first.text
    assert "wait" in first.text


async def test_an_empty_message_is_refused(tasks: anyio.abc.TaskGroup) -> None:
    chat = Chat(tasks, ScriptedModel([]))
    with pytest.raises(UsageError, match="empty"):
        await chat.session.say("  \n")
    assert not chat.record.events


async def test_a_lost_interpreter_is_started_anew_and_the_cells_are_run_again(
    tasks: anyio.abc.TaskGroup,
) -> None:
    lost = False

    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        nonlocal lost
        del sandbox
        assert isinstance(program, PythonCode)
        if program.source == b"crash()" and not lost:
            lost = True
            raise SandboxUnavailableError("gone", dispatch="outcome_unknown")
        return answer_with("ok\n")

    replies = [
        says("```python\nx = 1\n```"),
        says("set"),
        says("```python\ncrash()\n```"),
        says("```python\nprint(x)\n```"),
        says("1"),
    ]
    chat = Chat(tasks, ScriptedModel(replies), answer=answer)
    await chat.session.say("set x")
    ended = await chat.session.say("crash")
    assert ended.text == "1"
    (rebuilt,) = chat.told(StateRebuilt)
    assert isinstance(rebuilt, StateRebuilt)
    assert (rebuilt.cells, rebuilt.failed) == (1, 0)
    assert chat.programs.count("x = 1") == 2
    assert chat.programs.count("crash()") == 1


def lose_sandbox(chat: Chat) -> None:
    """Have the sandbox end between two turns, as by a lease that ran out."""
    sandbox = chat.session.notebook.sandbox
    assert isinstance(sandbox, FakeSandbox)
    sandbox.closed = True


async def test_a_sandbox_lost_between_turns_is_made_anew_before_the_next_cell(
    tasks: anyio.abc.TaskGroup,
) -> None:
    replies = [says("```python\nx = 1\n```"), says("set"), says(ADD), says("It is 2.")]
    chat = Chat(tasks, ScriptedModel(replies))
    await chat.session.say("set x")
    lose_sandbox(chat)
    ended = await chat.session.say("what is 1 + 1?")
    assert ended.text == "It is 2."
    (rebuilt,) = chat.told(StateRebuilt)
    assert isinstance(rebuilt, StateRebuilt)
    assert (rebuilt.cells, rebuilt.failed) == (1, 0)
    assert chat.programs[-2:] == ["x = 1", "print(1 + 1)"]


async def test_a_file_can_be_loaded_after_the_sandbox_was_lost(tasks: anyio.abc.TaskGroup) -> None:
    chat = Chat(tasks, ScriptedModel([]))
    await chat.session.load(PurePosixPath("a.txt"), b"a")
    lose_sandbox(chat)
    await chat.session.load(PurePosixPath("b.txt"), b"b")
    sandbox = chat.session.notebook.sandbox
    assert isinstance(sandbox, FakeSandbox)
    assert {str(path) for path in sandbox.files} == {"a.txt", "b.txt"}


async def test_a_tool_that_finds_the_sandbox_lost_fails_once(tasks: anyio.abc.TaskGroup) -> None:
    call = calls_tool("read_file", {"path": "a.txt"})
    chat = Chat(
        tasks,
        ScriptedModel([call, call, says("It says hi.")]),
        tools=(read_file,),
        approval="allow",
    )
    await chat.session.load(PurePosixPath("a.txt"), b"hi there\n")
    lose_sandbox(chat)
    await chat.session.say("read a.txt")
    used = [event for event in chat.told(ToolUsed) if isinstance(event, ToolUsed)]
    assert [event.failed for event in used] == [True, False]


async def test_a_cell_whose_sandbox_ends_with_it_is_written_down_and_run_again(
    tasks: anyio.abc.TaskGroup,
) -> None:
    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        assert isinstance(program, PythonCode)
        sandbox.closed = program.source == b"x = 1" and chat.programs.count("x = 1") == 1
        return answer_with("ok\n")

    replies = [says("```python\nx = 1\n```"), says(ADD), says("It is 2.")]
    chat = Chat(tasks, ScriptedModel(replies), answer=answer)
    ended = await chat.session.say("set x, then add")
    assert ended.text == "It is 2."
    assert [cell.observation for cell in chat.session.history.turns[0].cells] == ["ok", "ok"]
    assert chat.programs[-2:] == ["x = 1", "print(1 + 1)"]


async def test_an_undone_turn_is_forgotten_and_its_cells_are_not_run_again(
    tasks: anyio.abc.TaskGroup,
) -> None:
    replies = [
        says("```python\nx = 1\n```"),
        says("set"),
        says("```python\nx = 2\n```"),
        says("changed"),
        says("hm"),
    ]
    chat = Chat(tasks, ScriptedModel(replies))
    await chat.session.say("set x to 1")
    await chat.session.say("no, 2")
    await chat.session.undo()
    await chat.session.say("what is x?")
    asked = "\n".join(message.text for message in chat.model.asked[-1].messages)
    assert "no, 2" not in asked
    assert chat.programs.count("x = 1") == 2
    assert chat.programs.count("x = 2") == 1


async def test_nothing_to_undo_is_said(tasks: anyio.abc.TaskGroup) -> None:
    with pytest.raises(UsageError, match="nothing to undo"):
        await Chat(tasks, ScriptedModel([])).session.undo()


async def test_interrupting_ends_the_turn_and_the_next_one_works(
    tasks: anyio.abc.TaskGroup,
) -> None:
    asked = anyio.Event()

    class Slow(ScriptedModel):
        async def reply(self, request, *, on_text=lambda _: None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            if not asked.is_set():
                asked.set()
                await anyio.sleep_forever()
            return await super().reply(request, on_text=on_text)

    chat = Chat(tasks, Slow([says("Yes?")]))
    ended: list[TurnEnded] = []

    async def speak() -> None:
        ended.append(await chat.session.say("think for ever"))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(speak)
            await asked.wait()
            chat.session.interrupt()
        assert ended[0].status == "interrupted"
        assert (await chat.session.say("hello")).text == "Yes?"


async def test_a_tool_that_needs_leave_is_asked_about_and_a_no_is_told_to_the_model(
    tasks: anyio.abc.TaskGroup,
) -> None:
    asks: list[ToolAsk] = []

    async def refuse(ask: ToolAsk) -> bool:
        asks.append(ask)
        return False

    replies = [calls_tool("read_file", {"path": "a.txt"}), says("I may not.")]
    chat = Chat(tasks, ScriptedModel(replies), tools=(read_file,), approve=refuse)
    ended = await chat.session.say("read a.txt")
    assert ended.text == "I may not."
    assert [ask.tool for ask in asks] == ["read_file"]
    assert "not allowed" in chat.model.asked[-1].messages[-1].text


async def test_an_allowed_tool_is_used_without_asking(tasks: anyio.abc.TaskGroup) -> None:
    replies = [calls_tool("read_file", {"path": "a.txt"}), says("It says hi.")]
    chat = Chat(
        tasks,
        ScriptedModel(replies),
        tools=(read_file,),
        approval="allow",
    )
    await chat.session.load(PurePosixPath("a.txt"), b"hi there\n")
    await chat.session.say("read a.txt")
    (used,) = chat.told(ToolUsed)
    assert isinstance(used, ToolUsed)
    assert "hi there" in used.answer
    assert not used.failed


async def test_a_tool_that_does_not_exist_is_an_answer(tasks: anyio.abc.TaskGroup) -> None:
    chat = Chat(
        tasks, ScriptedModel([calls_tool("launch", {}), says("Sorry.")]), tools=(read_file,)
    )
    assert (await chat.session.say("launch")).text == "Sorry."
    assert "There is no such tool" in chat.model.asked[-1].messages[-1].text


async def test_files_that_were_loaded_are_described_to_the_model(
    tasks: anyio.abc.TaskGroup,
) -> None:
    chat = Chat(
        tasks, ScriptedModel([says("Two rows.")]), answer=lambda *_: answer_with(exit_code=1)
    )
    await chat.session.load(PurePosixPath("data.csv"), b"a,b\n1,2\n3,4\n")
    await chat.session.say("how many rows?")
    assert "data.csv" in chat.model.asked[0].messages[0].text
    assert "a,b" in chat.model.asked[0].messages[0].text


async def test_what_a_cell_writes_is_kept(tasks: anyio.abc.TaskGroup) -> None:
    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        assert isinstance(program, PythonCode)
        if b"save" in program.source:
            sandbox.files[PurePosixPath("out.csv")] = _file(b"a\n1\n")
        return answer_with()

    chat = Chat(
        tasks, ScriptedModel([says("```python\nsave()\n```"), says("Saved.")]), answer=answer
    )
    await chat.session.say("save it")
    (cell,) = chat.session.history.turns[0].cells
    assert [(made.path, made.media_type) for made in cell.artifacts] == [("out.csv", "text/csv")]
    assert "wrote out.csv" in cell.observation


async def test_a_file_rewritten_with_the_same_size_is_kept(tasks: anyio.abc.TaskGroup) -> None:
    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        assert isinstance(program, PythonCode)
        if b"save" in program.source:
            sandbox.files[PurePosixPath("out.csv")] = _file(b"a\n2\n")
        return answer_with()

    model = ScriptedModel([says("```python\nsave()\n```"), says("Saved.")])
    chat = Chat(tasks, model, answer=answer)
    await chat.session.load(PurePosixPath("out.csv"), b"a\n1\n")
    await chat.session.say("save it again")
    assert chat.record.exhibits == {"out.csv": b"a\n2\n"}


async def test_all_blocks_of_a_reply_are_run_in_order_and_all_text_is_kept(
    tasks: anyio.abc.TaskGroup,
) -> None:
    two = "First:\n```python\nx = 1\n```\nand\n```python\nx = 2\n```\nNow x is 2."
    chat = Chat(tasks, ScriptedModel([says(two), says("Done.")]))
    await chat.session.say("do both")
    assert chat.programs[-2:] == ["x = 1", "x = 2"]
    first, second = (event for event in chat.told(CellStarted) if isinstance(event, CellStarted))
    assert (first.thought, first.remark) == ("First:", "")
    assert (second.thought, second.remark) == ("and", "Now x is 2.")
    assert (first.usage.calls, second.usage.calls) == (1, 0)
    told = chat.model.asked[-1].messages[-1].text
    assert told == "Output of cell 1:\n2\n\nOutput of cell 2:\n2"


async def test_blocks_after_one_that_failed_are_not_run_and_that_is_told(
    tasks: anyio.abc.TaskGroup,
) -> None:
    three = "```python\nok()\n```\n```python\nbad()\n```\n```python\nnext_one()\n```"
    chat = Chat(
        tasks,
        ScriptedModel([says(three), says("It failed.")]),
        answer=lambda program, _: answer_with(
            exit_code=1 if getattr(program, "source", b"") == b"bad()" else 0
        ),
    )
    await chat.session.say("do all")
    assert "next_one()" not in chat.programs
    cells = chat.session.history.turns[0].cells
    assert [cell.failed for cell in cells] == [False, True, True]
    assert "not run, because an earlier cell" in cells[2].observation
    assert "not run, because an earlier cell" in chat.model.asked[-1].messages[-1].text


@pytest.mark.parametrize(
    "text",
    [
        "Like this:\n```python example\nprint(1)\n```\nThat is all.",
        "```text\nprint(1)\n```",
        "````markdown\n```python\nprint(1)\n```\n````",
        "~~~\n```python\nprint(1)\n```\n~~~",
    ],
)
async def test_code_with_another_label_is_shown_and_not_run(
    tasks: anyio.abc.TaskGroup, text: str
) -> None:
    chat = Chat(tasks, ScriptedModel([says(text)]))
    ended = await chat.session.say("show me")
    assert (ended.status, ended.text) == ("answered", text)
    assert not chat.programs


async def test_a_model_with_native_calls_runs_cells_by_calls_and_its_blocks_are_shown(
    tasks: anyio.abc.TaskGroup,
) -> None:
    answer = "It is 2. In your own program:\n```python\nprint(1 + 1)\n```\nGood luck."
    replies = [
        calls_tool("run_cell", {"code": "print(1 + 1)"}, text="Let me add."),
        says(answer),
        says("Still 2."),
    ]
    chat = Chat(tasks, ScriptedModel(replies), cells="auto")
    ended = await chat.session.say("what is 1 + 1?")
    assert (ended.status, ended.text) == ("answered", answer)
    assert chat.programs.count("print(1 + 1)") == 1
    (cell,) = chat.session.history.turns[0].cells
    assert (chat.session.history.turns[0].thoughts, cell.observation) == (("Let me add.",), "2")
    first, second = chat.model.asked
    assert [tool.name for tool in first.tools] == ["run_cell"]
    assert "run_cell" in first.messages[0].text
    assert (second.messages[-1].role, second.messages[-1].text) == ("tool", "2")

    await chat.session.say("and now?")
    told = chat.model.asked[-1].messages
    (call,) = next(message.tool_calls for message in told if message.tool_calls)
    assert (call.name, call.arguments) == ("run_cell", {"code": "print(1 + 1)"})
    assert any(message.answers == call.id for message in told)


async def test_a_call_without_code_is_an_answer(tasks: anyio.abc.TaskGroup) -> None:
    replies = [calls_tool("run_cell", {"source": "1"}), says("Sorry.")]
    chat = Chat(tasks, ScriptedModel(replies), cells="auto")
    assert (await chat.session.say("go")).text == "Sorry."
    assert "needs an object with the text `code`" in chat.model.asked[-1].messages[-1].text


async def test_packages_are_installed_in_a_new_interpreter_that_has_the_old_cells(
    tasks: anyio.abc.TaskGroup,
) -> None:
    replies = [says("```python\nx = 1\n```"), says("set"), says("Hm.")]
    chat = Chat(tasks, ScriptedModel(replies))
    await chat.session.say("set x")
    await chat.session.add_packages(("polars==1.*",))
    assert chat.notebook.equipment.packages == ("polars==1.*",)
    assert chat.programs.count("x = 1") == 2
    kinds = [event.kind for event in chat.record.events[-3:]]
    assert kinds == ["state_restoring", "packages_added", "state_rebuilt"]
    assert history_of(chat.record.events).packages == ("polars==1.*",)
    await chat.session.say("which packages?")
    assert "polars==1.*" in chat.model.asked[-1].messages[0].text


async def test_a_package_that_cannot_be_installed_changes_nothing(
    tasks: anyio.abc.TaskGroup,
) -> None:
    chat = Chat(tasks, ScriptedModel([says("```python\nx = 1\n```"), says("set")]))
    await chat.session.say("set x")
    before = chat.session.notebook.sandbox

    class Empty(FakeBackend):
        def open_sandbox(self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC):  # noqa: ANN202
            del limits, equipment
            raise PackageError("there is no package named 'nosuch'")

    chat.notebook.backend = Empty()
    with pytest.raises(PackageError):
        await chat.session.add_packages(("nosuch",))
    assert chat.session.notebook.sandbox is before
    assert not chat.told(PackagesAdded)


async def test_each_cell_that_is_restored_is_told(tasks: anyio.abc.TaskGroup) -> None:
    replies = [
        says("```python\nx = 1\n```\n```python\ny = 2\n```"),
        says("set"),
        says(ADD),
        says("2"),
    ]
    chat = Chat(tasks, ScriptedModel(replies))
    await chat.session.say("set both")
    lose_sandbox(chat)
    await chat.session.say("what is 1 + 1?")
    told = [event for event in chat.record.events if isinstance(event, StateRestoring)]
    assert [(event.cell, event.cells) for event in told] == [(1, 2), (2, 2)]


async def test_what_an_interrupted_cell_had_printed_is_kept(tasks: anyio.abc.TaskGroup) -> None:
    class Endless(Notebook):
        async def run(self, code: str, on_output: OnOutput) -> CellResult:
            del code
            on_output(OutputChunk(stream="stdout", data=b"tick 0\n"))
            return await anyio.sleep_forever()

    chat = Chat(tasks, ScriptedModel([says("```python\ntick()\n```")]))
    endless = Endless(backend=FakeBackend(), limits=Limits(), owner=OwnedContext(tasks))
    chat.session.notebook = endless

    def emit(event: ChatEvent) -> None:
        MemoryRecord.emit(chat.record, event)
        if isinstance(event, CellOutputDelta):
            chat.session.interrupt()

    chat.record.emit = emit  # type: ignore[method-assign]
    ended = await chat.session.say("tick for ever")
    assert ended.status == "interrupted"
    (cell,) = chat.session.history.turns[0].cells
    assert cell.observation == "tick 0\nThe cell was interrupted."
    assert not cell.kept


PNG = b"\x89PNG\r\n\x1a\n"


class Drawing(Notebook):
    """Shows a figure with each cell: the text of the cell, as a PNG."""

    async def run(self, code: str, on_output: OnOutput) -> CellResult:
        result = await Notebook.run(self, code, on_output)
        forms = {"text/plain": b"<Figure>", "image/png": PNG + code.encode()}
        return replace(result, outputs=(RichOutput(kind="display", forms=forms),))


def figures_shown(message: Message) -> list[bytes]:
    return [base64.b64decode(one.base64).removeprefix(PNG) for one in message.pictures]


@pytest.mark.parametrize("cells", ["blocks", "calls"])
@pytest.mark.parametrize("sees", [True, False])
async def test_the_newest_figures_are_shown_to_a_model_that_sees(
    tasks: anyio.abc.TaskGroup, cells: CellForm, *, sees: bool
) -> None:
    def cell(code: str) -> Reply:
        text = f"```python\n{code}\n```"
        return says(text) if cells == "blocks" else calls_tool("run_cell", {"code": code})

    model = ScriptedModel([cell("first"), cell("second"), says("A line.")])
    model.info = replace(INFO, sees_pictures=sees)
    chat = Chat(tasks, model, cells=cells)
    backend = chat.notebook.backend
    chat.session.notebook = Drawing(backend=backend, limits=Limits(), owner=OwnedContext(tasks))
    assert (await chat.session.say("draw")).text == "A line."
    shown = [figures_shown(message) for message in model.asked[-1].messages]
    assert [figures for figures in shown if figures] == ([[b"second"]] if sees else [])
    assert "[figure shown]" in "\n".join(message.text for message in model.asked[-1].messages)


def _file(content: bytes):  # noqa: ANN202
    from tests.doubles.fake_sandbox import FakeFile

    return FakeFile(content)


@pytest.mark.parametrize("policy", ["warn", "block"])
async def test_what_the_policy_finds_is_told_and_run_only_if_it_warns(
    tasks: anyio.abc.TaskGroup, policy: Literal["warn", "block"]
) -> None:
    chat = Chat(
        tasks,
        ScriptedModel([says("```python\nimport ctypes\n```"), says("I may not.")]),
        settings=ChatSettings(screening=policy),
    )

    def object_to(path: PurePosixPath, content: bytes):  # noqa: ANN202
        from assay.contracts.events import ScreenFinding

        assert content.endswith(
            b"import pandas as pd; import matplotlib.pyplot as plt\nimport ctypes"
        )
        return (ScreenFinding(path=path, line=2, rule="import", explanation="imports ctypes"),)

    chat.session.screen = object_to
    ended = await chat.session.say("use ctypes")
    assert ended.text == "I may not."
    assert ("import ctypes" in chat.programs) == (policy == "warn")
    assert "imports ctypes" in chat.model.asked[-1].messages[-1].text
    assert "line 1: imports ctypes" in chat.session.history.turns[0].cells[0].observation


async def test_a_cell_that_timed_out_is_left_out_when_state_is_rebuilt(
    tasks: anyio.abc.TaskGroup,
) -> None:
    slow = answer_with(reason=Reason.TIMED_OUT)

    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del sandbox
        assert isinstance(program, PythonCode)
        return slow if b"sleep" in program.source else answer_with("ok\n")

    chat = Chat(
        tasks, ScriptedModel([says("```python\nsleep()\n```"), says("Too slow.")]), answer=answer
    )
    await chat.session.say("sleep")
    assert not chat.session.history.kept_cells


async def test_a_history_read_back_is_the_history_that_was(tasks: anyio.abc.TaskGroup) -> None:
    chat = Chat(tasks, ScriptedModel([says(ADD), says("It is 2."), says("You asked about 1 + 1.")]))
    await chat.session.say("what is 1 + 1?")
    await chat.session.say("what did I ask?")
    assert history_of(chat.record.events) == chat.session.history


async def test_long_conversations_are_shortened_and_the_first_question_stays(
    tasks: anyio.abc.TaskGroup,
) -> None:
    info = replace(INFO, context_tokens=3_000)
    replies = [says(f"Answer {number}: " + "x" * 600) for number in range(30)]
    chat = Chat(tasks, ScriptedModel(replies, info=info))
    for number in range(30):
        await chat.session.say(f"question {number} about whales")
    last = chat.model.asked[-1].messages
    text = "\n".join(message.text for message in last)
    assert len(text) < 3_000 * 3
    assert "question 0 about whales" in text
    assert "question 28 about whales" in text
    assert last[-1].text == "question 29 about whales"
