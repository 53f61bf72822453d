from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import PurePosixPath

import anyio
import anyio.abc
import pytest

from assay.agent.dialogue.dialogue import Dialogue, DialogueParts
from assay.agent.dialogue.manners import Approve, Manners, approve_nothing
from assay.agent.dialogue.notebook import Notebook
from assay.agent.dialogue.seats import Seat, open_seats
from assay.contracts.dialogue import (
    CellBegan,
    CellEnded,
    DialogueEvent,
    Exhibit,
    ExhibitSource,
    StateRebuilt,
    ToolAsk,
    ToolUsed,
    TurnEnded,
)
from assay.contracts.dialogue_history import History, history_of
from assay.contracts.errors import (
    ModelUnavailableError,
    SandboxUnavailableError,
    UsageError,
)
from assay.contracts.execution import ExecutionResult, Limits, Program, PythonCode, Reason
from assay.contracts.ports import Tool
from assay.contracts.workspace import Tree, TreeFile
from assay.testing.fake_sandbox import FakeBackend, FakeSandbox, answer_with
from assay.testing.scripted_model import FACTS, ScriptedModel, calls_tool, says
from assay.tools.files import ReadFile

ADD = "Let me add.\n```python\nprint(1 + 1)\n```\nIt printed 99."


class MemoryRecord:
    """A `DialogueRecord` that keeps everything in memory."""

    def __init__(self) -> None:
        self.events: list[DialogueEvent] = []
        self.put: dict[PurePosixPath, TreeFile] = {}
        self.exhibits: dict[str, bytes] = {}

    def emit(self, event: DialogueEvent) -> None:
        self.events.append(event)

    async def keep_file(self, path: PurePosixPath, content: bytes) -> None:
        self.put[path] = TreeFile(content)

    async def files(self) -> Tree:
        return Tree(files=self.put)

    async def keep_exhibit(
        self, name: str, content: bytes, *, media_type: str, source: ExhibitSource, path: str = ""
    ) -> Exhibit:
        self.exhibits[name] = content
        return Exhibit(
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


class Desk:
    """A dialogue with doubles around it."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        model: ScriptedModel,
        *,
        answer: Callable[[Program, FakeSandbox], ExecutionResult] | None = None,
        tools: tuple[Tool, ...] = (),
        manners: Manners | None = None,
        approve: Approve = approve_nothing,
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
            backend=FakeBackend(answer=keep), limits=Limits(), seat=Seat(tasks)
        )
        parts = DialogueParts(
            notebook=self.notebook,
            record=self.record,
            screen=_no_findings,
            tools=tools,
            manners=manners or Manners(),
            approve=approve,
        )
        self.dialogue = Dialogue(parts, model, History())

    def told(self, kind: type[DialogueEvent]) -> list[DialogueEvent]:
        return [event for event in self.record.events if isinstance(event, kind)]


@pytest.fixture(name="tasks")
async def _tasks() -> AsyncGenerator[anyio.abc.TaskGroup]:
    async with open_seats() as tasks:
        yield tasks


async def test_a_reply_without_code_is_the_answer(tasks: anyio.abc.TaskGroup) -> None:
    desk = Desk(tasks, ScriptedModel([says("Good morning.")]))
    ended = await desk.dialogue.say("hello")
    assert (ended.status, ended.text) == ("answered", "Good morning.")
    assert not desk.programs


async def test_code_is_run_and_what_the_model_made_up_after_it_is_forgotten(
    tasks: anyio.abc.TaskGroup,
) -> None:
    desk = Desk(tasks, ScriptedModel([says(ADD), says("It is 2.")]))
    ended = await desk.dialogue.say("what is 1 + 1?")
    assert ended.text == "It is 2."
    assert desk.programs[-1] == "print(1 + 1)"
    told = "\n".join(message.text for message in desk.model.asked[-1].messages)
    assert "It printed 99" not in told
    assert "Output of the cell:\n2" in told


async def test_thought_code_and_observation_are_kept_apart(tasks: anyio.abc.TaskGroup) -> None:
    desk = Desk(tasks, ScriptedModel([says(ADD), says("It is 2.")]))
    await desk.dialogue.say("what is 1 + 1?")
    (began,), (cell,) = desk.told(CellBegan), desk.told(CellEnded)
    assert isinstance(began, CellBegan)
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
    desk = Desk(tasks, ScriptedModel(replies), answer=answer)
    ended = await desk.dialogue.say("print x")
    assert ended.text == "3."
    assert [cell.failed for cell in desk.dialogue.history.turns[0].cells] == [True, False]
    assert any("NameError: x" in message.text for message in desk.model.asked[1].messages)


async def test_a_model_that_keeps_failing_is_told_to_say_what_is_wrong(
    tasks: anyio.abc.TaskGroup,
) -> None:
    failing = [says(f"```python\nprint(x{number})\n```") for number in range(4)]
    desk = Desk(
        tasks,
        ScriptedModel([*failing, says("There is no x.")]),
        answer=lambda program, _: answer_with(
            exit_code=1 if b"print(x" in getattr(program, "source", b"") else 0
        ),
        manners=Manners(steps=8, repairs=3),
    )
    ended = await desk.dialogue.say("print x")
    assert ended.text == "There is no x."
    assert "failed several times" in desk.model.asked[-1].messages[-1].text


async def test_after_the_last_step_code_is_not_run_any_more(tasks: anyio.abc.TaskGroup) -> None:
    code = [says(f"```python\nprint({number})\n```") for number in range(5)]
    desk = Desk(tasks, ScriptedModel(code), manners=Manners(steps=3))
    ended = await desk.dialogue.say("go on for ever")
    assert ended.status == "out_of_steps"
    assert len(desk.dialogue.history.turns[0].cells) == 2


async def test_a_model_that_cannot_answer_ends_the_turn_and_not_the_conversation(
    tasks: anyio.abc.TaskGroup,
) -> None:
    broken = ModelUnavailableError("nobody answers", hint="wait")
    desk = Desk(tasks, ScriptedModel([broken, says("Here I am.")]))
    first = await desk.dialogue.say("hello?")
    second = await desk.dialogue.say("hello?")
    assert (first.status, second.text) == ("failed", "Here I am.")
    assert "nobody answers" in first.text
    assert "wait" in first.text


async def test_an_empty_message_is_refused(tasks: anyio.abc.TaskGroup) -> None:
    desk = Desk(tasks, ScriptedModel([]))
    with pytest.raises(UsageError, match="empty"):
        await desk.dialogue.say("  \n")
    assert not desk.record.events


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
    desk = Desk(tasks, ScriptedModel(replies), answer=answer)
    await desk.dialogue.say("set x")
    ended = await desk.dialogue.say("crash")
    assert ended.text == "1"
    (rebuilt,) = desk.told(StateRebuilt)
    assert isinstance(rebuilt, StateRebuilt)
    assert (rebuilt.cells, rebuilt.failed) == (1, 0)
    assert desk.programs.count("x = 1") == 2
    assert desk.programs.count("crash()") == 1


def lose_sandbox(desk: Desk) -> None:
    """Have the sandbox end between two turns, as by a lease that ran out."""
    sandbox = desk.dialogue.sandbox
    assert isinstance(sandbox, FakeSandbox)
    sandbox.closed = True


async def test_a_sandbox_lost_between_turns_is_made_anew_before_the_next_cell(
    tasks: anyio.abc.TaskGroup,
) -> None:
    replies = [says("```python\nx = 1\n```"), says("set"), says(ADD), says("It is 2.")]
    desk = Desk(tasks, ScriptedModel(replies))
    await desk.dialogue.say("set x")
    lose_sandbox(desk)
    ended = await desk.dialogue.say("what is 1 + 1?")
    assert ended.text == "It is 2."
    (rebuilt,) = desk.told(StateRebuilt)
    assert isinstance(rebuilt, StateRebuilt)
    assert (rebuilt.cells, rebuilt.failed) == (1, 0)
    assert desk.programs[-2:] == ["x = 1", "print(1 + 1)"]


async def test_a_file_can_be_loaded_after_the_sandbox_was_lost(tasks: anyio.abc.TaskGroup) -> None:
    desk = Desk(tasks, ScriptedModel([]))
    await desk.dialogue.load(PurePosixPath("a.txt"), b"a")
    lose_sandbox(desk)
    await desk.dialogue.load(PurePosixPath("b.txt"), b"b")
    sandbox = desk.dialogue.sandbox
    assert isinstance(sandbox, FakeSandbox)
    assert {str(path) for path in sandbox.files} == {"a.txt", "b.txt"}


async def test_a_tool_that_finds_the_sandbox_lost_fails_once(tasks: anyio.abc.TaskGroup) -> None:
    call = calls_tool("read_file", {"path": "a.txt"})
    desk = Desk(
        tasks,
        ScriptedModel([call, call, says("It says hi.")]),
        tools=(ReadFile(),),
        manners=Manners(approvals={"read_file": "allow"}),
    )
    await desk.dialogue.load(PurePosixPath("a.txt"), b"hi there\n")
    lose_sandbox(desk)
    await desk.dialogue.say("read a.txt")
    used = [event for event in desk.told(ToolUsed) if isinstance(event, ToolUsed)]
    assert [event.failed for event in used] == [True, False]


async def test_a_cell_whose_sandbox_ends_with_it_is_written_down_and_run_again(
    tasks: anyio.abc.TaskGroup,
) -> None:
    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        assert isinstance(program, PythonCode)
        sandbox.closed = program.source == b"x = 1" and desk.programs.count("x = 1") == 1
        return answer_with("ok\n")

    replies = [says("```python\nx = 1\n```"), says(ADD), says("It is 2.")]
    desk = Desk(tasks, ScriptedModel(replies), answer=answer)
    ended = await desk.dialogue.say("set x, then add")
    assert ended.text == "It is 2."
    assert [cell.observation for cell in desk.dialogue.history.turns[0].cells] == ["ok", "ok"]
    assert desk.programs[-2:] == ["x = 1", "print(1 + 1)"]


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
    desk = Desk(tasks, ScriptedModel(replies))
    await desk.dialogue.say("set x to 1")
    await desk.dialogue.say("no, 2")
    await desk.dialogue.undo()
    await desk.dialogue.say("what is x?")
    asked = "\n".join(message.text for message in desk.model.asked[-1].messages)
    assert "no, 2" not in asked
    assert desk.programs.count("x = 1") == 2
    assert desk.programs.count("x = 2") == 1


async def test_nothing_to_undo_is_said(tasks: anyio.abc.TaskGroup) -> None:
    with pytest.raises(UsageError, match="nothing to undo"):
        await Desk(tasks, ScriptedModel([])).dialogue.undo()


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

    desk = Desk(tasks, Slow([says("Yes?")]))
    ended: list[TurnEnded] = []

    async def speak() -> None:
        ended.append(await desk.dialogue.say("think for ever"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(speak)
            await asked.wait()
            desk.dialogue.interrupt()
        assert ended[0].status == "interrupted"
        assert (await desk.dialogue.say("hello")).text == "Yes?"


async def test_a_tool_that_needs_leave_is_asked_about_and_a_no_is_told_to_the_model(
    tasks: anyio.abc.TaskGroup,
) -> None:
    asks: list[ToolAsk] = []

    async def refuse(ask: ToolAsk) -> bool:
        asks.append(ask)
        return False

    replies = [calls_tool("read_file", {"path": "a.txt"}), says("I may not.")]
    desk = Desk(tasks, ScriptedModel(replies), tools=(ReadFile(),), approve=refuse)
    ended = await desk.dialogue.say("read a.txt")
    assert ended.text == "I may not."
    assert [ask.tool for ask in asks] == ["read_file"]
    assert "not allowed" in desk.model.asked[-1].messages[-1].text


async def test_an_allowed_tool_is_used_without_asking(tasks: anyio.abc.TaskGroup) -> None:
    replies = [calls_tool("read_file", {"path": "a.txt"}), says("It says hi.")]
    desk = Desk(
        tasks,
        ScriptedModel(replies),
        tools=(ReadFile(),),
        manners=Manners(approvals={"read_file": "allow"}),
    )
    await desk.dialogue.load(PurePosixPath("a.txt"), b"hi there\n")
    await desk.dialogue.say("read a.txt")
    (used,) = desk.told(ToolUsed)
    assert isinstance(used, ToolUsed)
    assert "hi there" in used.answer
    assert not used.failed


async def test_a_tool_that_does_not_exist_is_an_answer(tasks: anyio.abc.TaskGroup) -> None:
    desk = Desk(
        tasks, ScriptedModel([calls_tool("launch", {}), says("Sorry.")]), tools=(ReadFile(),)
    )
    assert (await desk.dialogue.say("launch")).text == "Sorry."
    assert "There is no such tool" in desk.model.asked[-1].messages[-1].text


async def test_files_that_were_loaded_are_described_to_the_model(
    tasks: anyio.abc.TaskGroup,
) -> None:
    desk = Desk(
        tasks, ScriptedModel([says("Two rows.")]), answer=lambda *_: answer_with(exit_code=1)
    )
    await desk.dialogue.load(PurePosixPath("data.csv"), b"a,b\n1,2\n3,4\n")
    await desk.dialogue.say("how many rows?")
    assert "data.csv" in desk.model.asked[0].messages[0].text
    assert "a,b" in desk.model.asked[0].messages[0].text


async def test_what_a_cell_writes_is_kept(tasks: anyio.abc.TaskGroup) -> None:
    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        assert isinstance(program, PythonCode)
        if b"save" in program.source:
            sandbox.files[PurePosixPath("out.csv")] = _file(b"a\n1\n")
        return answer_with()

    desk = Desk(
        tasks, ScriptedModel([says("```python\nsave()\n```"), says("Saved.")]), answer=answer
    )
    await desk.dialogue.say("save it")
    (cell,) = desk.dialogue.history.turns[0].cells
    assert [(made.path, made.media_type) for made in cell.artifacts] == [("out.csv", "text/csv")]
    assert "wrote out.csv" in cell.observation


def _file(content: bytes):  # noqa: ANN202
    from assay.testing.fake_sandbox import FakeFile  # noqa: PLC0415

    return FakeFile(content)


async def test_code_that_the_policy_forbids_is_not_run(tasks: anyio.abc.TaskGroup) -> None:
    desk = Desk(
        tasks,
        ScriptedModel([says("```python\nimport ctypes\n```"), says("I may not.")]),
        manners=Manners(policy="block"),
    )

    def object_to(path: PurePosixPath, content: bytes):  # noqa: ANN202
        from assay.contracts.events import ScreenFinding  # noqa: PLC0415

        assert content == b"import ctypes"
        return (ScreenFinding(path=path, line=1, rule="import", explanation="imports ctypes"),)

    desk.dialogue._screen = object_to  # noqa: SLF001
    ended = await desk.dialogue.say("use ctypes")
    assert ended.text == "I may not."
    assert "import ctypes" not in desk.programs
    assert "imports ctypes" in desk.dialogue.history.turns[0].cells[0].observation


async def test_a_cell_that_timed_out_is_left_out_when_state_is_rebuilt(
    tasks: anyio.abc.TaskGroup,
) -> None:
    slow = answer_with(reason=Reason.TIMED_OUT)

    def answer(program: Program, sandbox: FakeSandbox) -> ExecutionResult:
        del sandbox
        assert isinstance(program, PythonCode)
        return slow if b"sleep" in program.source else answer_with("ok\n")

    desk = Desk(
        tasks, ScriptedModel([says("```python\nsleep()\n```"), says("Too slow.")]), answer=answer
    )
    await desk.dialogue.say("sleep")
    assert not desk.dialogue.history.kept_cells


async def test_a_history_read_back_is_the_history_that_was(tasks: anyio.abc.TaskGroup) -> None:
    desk = Desk(tasks, ScriptedModel([says(ADD), says("It is 2."), says("You asked about 1 + 1.")]))
    await desk.dialogue.say("what is 1 + 1?")
    await desk.dialogue.say("what did I ask?")
    assert history_of(desk.record.events) == desk.dialogue.history


async def test_long_conversations_are_shortened_and_the_first_question_stays(
    tasks: anyio.abc.TaskGroup,
) -> None:
    facts = replace(FACTS, context_tokens=3_000)
    replies = [says(f"Answer {number}: " + "x" * 600) for number in range(30)]
    desk = Desk(tasks, ScriptedModel(replies, facts=facts))
    for number in range(30):
        await desk.dialogue.say(f"question {number} about whales")
    last = desk.model.asked[-1].messages
    text = "\n".join(message.text for message in last)
    assert len(text) < 3_000 * 3
    assert "question 0 about whales" in text
    assert "question 28 about whales" in text
    assert last[-1].text == "question 29 about whales"
