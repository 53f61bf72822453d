"""Tracks: how a solver works on an exercise.

The blind track sends docs and stubs, and shows the whole test output after each attempt; the tests
stay hidden. In the agent tracks, Assay works with the tests or with their output only.
"""

import re
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final

import anyio

from assay.agent.edits.apply import Applied, Edit, apply_edits
from assay.agent.prompt_builder import fenced, language_of, prompt
from assay.agent.reply_parser.parse import ParsedReply, describe_protocol, understand_text
from assay.bench.exercise import Exercise
from assay.bench.score import Judge, Judgement
from assay.bench.toolchains.toolchain import Commands
from assay.contracts.errors import ContextOverflowError
from assay.contracts.goal import RunLimits, RunResult, Status
from assay.contracts.messages import Message, ModelFacts, Reply, Request, StopReason, Usage
from assay.contracts.ports import Model, OnText, SandboxBackend, ignore_text
from assay.contracts.workspace import Tree
from assay.runs.request import Commission, RunCallbacks
from assay.runs.runner import Lent, resume_run, start_run
from assay.settings.load import Settings
from assay.storage.apply_changes import write_changes
from assay.storage.journal import DiskJournal
from assay.storage.run_store import RunStore
from assay.text.globs import matches

_ADDENDUM: Final = """\
####

Use the above instructions to modify the supplied files: {file_list}
Don't change the names of existing functions or classes, as they may be referenced from other \
code like unit tests, etc.
Only use standard libraries, don't suggest installing any packages.
"""
FAILURES: Final = """\
####

See the testing errors above.
The tests are correct, don't try and change them.
Fix the code in {file_list} to resolve the errors.
"""
_REPAIRS: Final = 3
"""Repeated requests within a try after invalid replies."""
_LOCAL_OUTPUT_TOKENS: Final = 2048
"""Limit for small models, which could otherwise repeat themselves without end."""
_LAZY: Final = re.compile(r"^[+]? *[#].* [.][.][.] ", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class Account:
    """The log of one exercise."""

    judgements: list[Judgement] = field(default_factory=list[Judgement])
    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    malformed: int = 0
    unusable: bool = False
    """The last reply was invalid, also after repeated requests."""
    exhausted: bool = False
    out_of_budget: bool = False
    lazy_comments: int = 0
    model_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindSitting:
    """One exercise with the model and the scorer."""

    exercise: Exercise
    commands: Commands
    model: Model
    judge: Judge
    provable: bool = True
    tries: int = 2

    async def carry_out(self) -> Account:
        """Ask, test, show the output, and ask again, up to the number of tries.

        Raises:
            ModelUnavailableError: If the model does not answer.
            ModelRefusedError: If the model refuses the request.
            BudgetExceededError: If a cap does not allow the call.
            SandboxUnavailableError: If no sandbox is available.
        """
        account = Account()
        tree = self.exercise.stub
        messages = _opening(self.exercise)
        for number in range(1, self.tries + 1):
            try:
                tree, messages = await self._one_try(tree, messages, account)
            except ContextOverflowError as error:
                account.exhausted, account.reason = True, str(error)
                break
            judgement = await self.judge.judge(
                self.exercise, self.commands, tree, provable=self.provable
            )
            account.attempts += 1
            account.judgements.append(judgement)
            if judgement.passed or number == self.tries:
                break
            said = f"{judgement.output}\n{FAILURES.format(file_list=names_of(self.exercise))}"
            messages = (*messages, Message(role="user", text=said))
        return account

    async def _one_try(
        self, tree: Tree, messages: tuple[Message, ...], account: Account
    ) -> tuple[Tree, tuple[Message, ...]]:
        for _ in range(1 + _REPAIRS):
            request = self._request(messages)
            begun = time.monotonic()
            reply = await self.model.reply(request)
            account.model_s += time.monotonic() - begun
            account.usage += reply.usage
            messages = (*messages, _closed(reply, request))
            account.lazy_comments += len(_LAZY.findall(reply.message.text))
            result = self._applied(tree, reply)
            account.unusable = not isinstance(result, Tree)
            if isinstance(result, Tree):
                return result, messages
            account.malformed += 1
            messages = (*messages, Message(role="user", text=f"That cannot be used. {result}"))
        return tree, messages

    def _request(self, messages: tuple[Message, ...]) -> Request:
        facts = self.model.facts
        sole = self.exercise.solution[0] if len(self.exercise.solution) == 1 else None
        led = facts.supports_prefill and sole is not None
        return Request(
            messages=messages,
            max_output_tokens=_LOCAL_OUTPUT_TOKENS if facts.local else None,
            temperature=0.0,
            prefill=f"```{language_of(sole)}\n" if led and sole is not None else "",
            stop=("\n```",) if led else (),
        )

    def _applied(self, tree: Tree, reply: Reply) -> Tree | str:
        """Return the solution with the reply's edits, or why they are invalid."""
        solution = self.exercise.solution
        understood: ParsedReply = understand_text(
            reply.message.text,
            sole_target=solution[0] if len(solution) == 1 else None,
            tools=frozenset(),
            ended=reply.stop_reason is StopReason.ENDED,
        )
        edits = [ask for ask in understood.asks if isinstance(ask, Edit)]
        if not edits:
            return " ".join(understood.problems) or "There is no file in it."
        result = apply_edits(tree, edits, may_change=self._may_change)
        return result.tree if isinstance(result, Applied) else result.feedback

    def _may_change(self, path: PurePosixPath) -> str:
        if matches(path, self.exercise.writable):
            return ""
        return f"`{path}` is not among the files to change: {', '.join(self.exercise.writable)}"


def names_of(exercise: Exercise) -> str:
    """Return the base names of the files to write, as in prompts."""
    return " ".join(path.name for path in exercise.solution)


def _opening(exercise: Exercise) -> tuple[Message, ...]:
    told = prompt("direct")
    if len(exercise.solution) != 1:
        told = f"{told}\n\n{describe_protocol(())}"
    files = "\n\n".join(
        f"{path}\n{fenced(path, exercise.workspace.text(path) or '')}" for path in exercise.solution
    )
    said = f"{exercise.docs}{_ADDENDUM.format(file_list=names_of(exercise))}\n{files}"
    return (Message(role="system", text=told), Message(role="user", text=said))


def _closed(reply: Reply, request: Request) -> Message:
    """Return the reply, with the fence closed that the stop word cut off."""
    if request.prefill and reply.stop_reason is StopReason.ENDED:
        return Message(role="assistant", text=f"{reply.message.text.rstrip()}\n```")
    return reply.message


_MOST_OUTPUT_CHARS: Final = 24_000
"""Limit of the hidden tests' output, in a statement that the agent reads repeatedly."""


class TimedModel:
    """A model with a measured duration of its calls."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.spent_s = 0.0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def facts(self) -> ModelFacts:
        return self._model.facts

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        begun = time.monotonic()
        try:
            return await self._model.reply(request, on_text=on_text)
        finally:
            self.spent_s += time.monotonic() - begun


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSitting:
    """Assay's work on one exercise."""

    exercise: Exercise
    commands: Commands
    model: Model
    backend: SandboxBackend
    judge: Judge
    settings: Settings
    effort: RunLimits
    place: Path
    """A separate folder with the run and the workspace. An existing one is resumed."""
    provable: bool = True

    async def with_tests(self) -> Account:
        """Let Assay see the tests, and work until they pass or a limit is reached.

        Raises:
            ModelUnavailableError: If the model does not answer.
            ModelRefusedError: If the model refuses the request.
            SandboxUnavailableError: If no sandbox is available.
            JournalError: If the run cannot be written.
        """
        exercise, account = self.exercise, Account()
        if not self.provable:
            # Nothing can verify it: only the exit code remains.
            return await self._without_proof(account)
        commission = self._commission(
            f"{exercise.docs}\n\n{self._task}",
            checks=(self.commands.check,),
            tests=tuple(str(path) for path in exercise.tests.files),
        )
        tree = await self._pursue(1, exercise.pristine, commission, account)
        judgement = await self.judge.judge(exercise, self.commands, tree)
        account.judgements.append(judgement)
        return account

    async def _without_proof(self, account: Account) -> Account:
        commission = self._commission(f"{self.exercise.docs}\n\n{self._task}")
        tree = await self._pursue(1, self.exercise.pristine, commission, account)
        judgement = await self.judge.judge(self.exercise, self.commands, tree, provable=False)
        account.judgements.append(judgement)
        return account

    async def without_tests(self, tries: int) -> Account:
        """Let Assay work without the tests, and show it their output after each try.

        Raises:
            AssayError: The errors of `with_tests`.
        """
        exercise, account = self.exercise, Account()
        statement = f"{exercise.docs}\n\n{self._task}"
        tree = exercise.workspace
        for number in range(1, tries + 1):
            proposal = await self._pursue(number, tree, self._commission(statement), account)
            judgement = await self.judge.judge(
                exercise, self.commands, proposal, provable=self.provable
            )
            account.judgements.append(judgement)
            if judgement.passed:
                break
            tree = exercise.workspace.with_files(proposal.files)
            statement = f"{exercise.docs}\n\n{self._told(judgement)}"
        return account

    @property
    def _task(self) -> str:
        names = ", ".join(f"`{path}`" for path in self.exercise.solution)
        return (
            f"Use the above instructions to modify the supplied files: {names}. Don't change the "
            "names of existing functions or classes. Only use standard libraries."
        )

    def _told(self, judgement: Judgement) -> str:
        output = judgement.output[-_MOST_OUTPUT_CHARS:]
        return f"{output}\n{FAILURES.format(file_list=names_of(self.exercise))}"

    def _commission(
        self, statement: str, *, checks: tuple[str, ...] = (), tests: tuple[str, ...] = ()
    ) -> Commission:
        return Commission(
            statement=statement,
            workspace=self.place / "workspace",
            checks=checks,
            tests=tests,
            allowed=self.exercise.writable,
            model=self.model.name,
            effort=self.effort,
            screening=self.settings.agent.screening,
            # Slugs repeat across languages, and lessons of one would affect the next.
            memory="off",
        )

    async def _pursue(
        self, number: int, tree: Tree, commission: Commission, account: Account
    ) -> Tree:
        """Start or resume a run; returns the solution, or the best attempt."""
        place = self.place / f"try-{number}"
        commission = replace(commission, workspace=place / "workspace")
        settings = self.settings.model_copy(update={"state_dir": place / "state"})
        timed = TimedModel(self.model)
        lent, watching = Lent(model=timed, backend=self.backend), RunCallbacks()
        begun = RunStore(settings.state_dir).list(1)
        try:
            if begun:
                outcome = await resume_run(begun[0].id, settings, watching, lent=lent)
            else:
                await anyio.to_thread.run_sync(_lay_out, place / "workspace", tree)
                outcome = await start_run(commission, settings, watching, lent=lent)
        finally:
            account.model_s += timed.spent_s
        _note(account, outcome)
        result = await _tree_of(outcome, Path(watching.folder), tree)
        await anyio.to_thread.run_sync(_tidy_up, place / "workspace")
        return result


def _note(account: Account, outcome: RunResult) -> None:
    account.usage += outcome.usage
    account.attempts += outcome.attempts
    account.out_of_budget = outcome.status is Status.OUT_OF_BUDGET
    account.reason = outcome.reason


async def _tree_of(outcome: RunResult, folder: Path, untouched: Tree) -> Tree:
    if outcome.tree == untouched.digest:
        return untouched
    async with DiskJournal(folder) as journal:
        return await journal.load_tree(outcome.tree)


def _lay_out(folder: Path, tree: Tree) -> None:
    # The incomplete folder of a process that was killed before its run existed.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_changes(folder, Tree(), tree)


def _tidy_up(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
