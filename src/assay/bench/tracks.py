"""Tracks: how a solver works on an exercise.

The blind track sends docs and stubs, and shows the whole test output after each attempt; the tests
stay hidden. In the agent tracks, Assay works with the tests or with their output only.
"""

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import anyio

from assay.agent.edits.apply import Applied, Edit, apply_edits
from assay.agent.prompt_builder import fenced, language_of, prompt
from assay.agent.reply_parser.parse import describe_protocol, understand_text
from assay.bench.exercise import Exercise
from assay.bench.score import Scorer
from assay.bench.store import Result, Status, Try
from assay.bench.toolchains.toolchain import Commands
from assay.contracts import goal
from assay.contracts.errors import ContextOverflowError
from assay.contracts.messages import Message, Reply, Request, StopReason
from assay.contracts.ports import Model, OnText, ignore_text
from assay.contracts.workspace import Tree
from assay.models.model_bases import WrappedModel
from assay.runs.request import RunCallbacks
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
_MOST_OUTPUT_CHARS: Final = 24_000
"""Limit of the hidden tests' output, in a statement that the agent reads repeatedly."""


class TimedModel(WrappedModel):
    """A model with a measured duration of its calls."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.spent_s = 0.0

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        begun = time.monotonic()
        try:
            return await self._model.reply(request, on_text=on_text)
        finally:
            self.spent_s += time.monotonic() - begun


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRun:
    """One exercise on a track, with a solver's model and the scorer."""

    exercise: Exercise
    commands: Commands
    model: TimedModel
    scorer: Scorer
    settings: Settings
    limits: goal.RunLimits
    tries: int
    folder: Path
    """A separate folder with the agent's runs and workspaces. Existing ones are resumed."""
    result: Result
    """The track fills it in."""
    provable: bool = True

    async def solve(self) -> None:
        """Work on the exercise until it is solved, or a limit is reached.

        Raises:
            ModelUnavailableError: If the model does not answer.
            ModelRefusedError: If the model refuses the request.
            BudgetExceededError: If a cap does not allow a call.
            SandboxUnavailableError: If no sandbox is available.
            JournalError: If a run of the agent cannot be written.
        """
        result = self.result
        match result.track:
            case "blind":
                await self._solve_blind()
            case "blind+exec":
                await self._solve_without_tests()
            case "agentic":
                await self._solve_with_tests()
        result.model_s = self.model.spent_s
        last = result.tries[-1] if result.tries else None
        if last is None:
            return
        result.reason = result.reason or last.reason
        if last.passed:
            result.status = Status.PASSED
        elif last.tampered and result.status is not Status.EXHAUSTED_CONTEXT:
            result.status = Status.TAMPERED
        elif last.timed_out and result.status is Status.FAILED:
            result.status = Status.TIMED_OUT

    async def _score(self, proposal: Tree) -> Try:
        found = await self.scorer.score(
            self.exercise, self.commands, proposal, provable=self.provable
        )
        self.result.tries += (found,)
        return found

    @property
    def _file_list(self) -> str:
        return " ".join(path.name for path in self.exercise.solution)

    async def _solve_blind(self) -> None:
        """Ask, test, show the output, and ask again, up to the number of tries."""
        exercise, result = self.exercise, self.result
        system = prompt("direct")
        if len(exercise.solution) != 1:
            system = f"{system}\n\n{describe_protocol(())}"
        files = "\n\n".join(
            f"{path}\n{fenced(path, exercise.workspace.text(path) or '')}"
            for path in exercise.solution
        )
        task = f"{exercise.docs}{_ADDENDUM.format(file_list=self._file_list)}\n{files}"
        messages = [Message(role="system", text=system), Message(role="user", text=task)]
        tree = exercise.stub
        for _ in range(self.tries):
            try:
                tree = await self._ask(tree, messages)
            except ContextOverflowError as error:
                result.status, result.reason = Status.EXHAUSTED_CONTEXT, str(error)
                break
            result.attempts += 1
            found = await self._score(tree)
            if found.passed:
                break
            text = f"{found.output}\n{FAILURES.format(file_list=self._file_list)}"
            messages.append(Message(role="user", text=text))

    async def _ask(self, tree: Tree, messages: list[Message]) -> Tree:
        """Return the tree with the edits of the first valid reply; extends the messages."""
        info, result, solution = self.model.info, self.result, self.exercise.solution
        sole = solution[0] if len(solution) == 1 else None
        prefill = f"```{language_of(sole)}\n" if info.supports_prefill and sole else ""
        for _ in range(1 + _REPAIRS):
            reply = await self.model.reply(
                Request(
                    messages=tuple(messages),
                    max_output_tokens=_LOCAL_OUTPUT_TOKENS if info.small else None,
                    temperature=0.0,
                    prefill=prefill,
                    stop=("\n```",) if prefill else (),
                )
            )
            text = reply.message.text
            ended = reply.stop_reason is StopReason.ENDED
            # The stop word cut off the end of the fence.
            closed = Message(role="assistant", text=f"{text.rstrip()}\n```")
            messages.append(closed if prefill and ended else reply.message)
            result.usage += reply.usage
            result.lazy_comments += len(_LAZY.findall(text))
            parsed = understand_text(text, sole_target=sole, tools=frozenset(), ended=ended)
            edits = [ask for ask in parsed.asks if isinstance(ask, Edit)]
            if edits:
                applied = apply_edits(tree, edits, may_change=self._may_change)
                if isinstance(applied, Applied):
                    result.status = Status.FAILED
                    return applied.tree
                problem = applied.feedback
            else:
                problem = " ".join(parsed.problems) or "There is no file in it."
            result.status = Status.MALFORMED
            result.malformed += 1
            messages.append(Message(role="user", text=f"That cannot be used. {problem}"))
        return tree

    def _may_change(self, path: PurePosixPath) -> str:
        if matches(path, self.exercise.writable):
            return ""
        return f"`{path}` is not among the files to change: {', '.join(self.exercise.writable)}"

    @property
    def _statement(self) -> str:
        names = ", ".join(f"`{path}`" for path in self.exercise.solution)
        return (
            f"{self.exercise.docs}\n\nUse the above instructions to modify the supplied files: "
            f"{names}. Don't change the names of existing functions or classes. Only use standard "
            "libraries."
        )

    async def _solve_with_tests(self) -> None:
        """Let Assay see the tests, and work until they pass or a limit is reached."""
        # Without tests, nothing can verify the attempts: only the exit code remains.
        checks = (self.commands.check,) if self.provable else ()
        proposal = await self._run_agent(1, self.exercise.pristine, self._statement, checks=checks)
        await self._score(proposal)

    async def _solve_without_tests(self) -> None:
        """Let Assay work without the tests, and show it their output after each try."""
        exercise, statement = self.exercise, self._statement
        tree = exercise.workspace
        for number in range(1, self.tries + 1):
            proposal = await self._run_agent(number, tree, statement)
            found = await self._score(proposal)
            if found.passed:
                break
            tree = exercise.workspace.with_files(proposal.files)
            output = found.output[-_MOST_OUTPUT_CHARS:]
            failures = FAILURES.format(file_list=self._file_list)
            statement = f"{exercise.docs}\n\n{output}\n{failures}"

    async def _run_agent(
        self, number: int, tree: Tree, statement: str, *, checks: tuple[str, ...] = ()
    ) -> Tree:
        """Start or resume a run; returns the solution, or the best attempt."""
        folder = self.folder / f"try-{number}"
        workspace = folder / "workspace"
        request = goal.RunRequest(
            goal=statement,
            workspace=workspace,
            checks=checks,
            tests=tuple(str(path) for path in self.exercise.tests.files) if checks else (),
            allowed=self.exercise.writable,
            model=self.model.name,
            limits=self.limits,
            screening=self.settings.agent.screening,
            # Slugs repeat across languages, and lessons of one would affect the next.
            memory="off",
        )
        settings = self.settings.model_copy(update={"state_dir": folder / "state"})
        lent, callbacks = Lent(model=self.model, backend=self.scorer.backend), RunCallbacks()
        if begun := RunStore(settings.state_dir).list(1):
            outcome = await resume_run(begun[0].id, settings, callbacks, lent=lent)
        else:
            await anyio.to_thread.run_sync(_lay_out, workspace, tree)
            outcome = await start_run(request, settings, callbacks, lent=lent)
        result = self.result
        result.usage += outcome.usage
        result.attempts += outcome.attempts
        result.reason = outcome.reason
        out_of_budget = outcome.status is goal.Status.OUT_OF_BUDGET
        result.status = Status.BUDGET if out_of_budget else Status.FAILED
        if outcome.tree != tree.digest:
            async with DiskJournal(Path(outcome.folder)) as journal:
                tree = await journal.load_tree(outcome.tree)
        await anyio.to_thread.run_sync(_remove, workspace)
        return tree


def _lay_out(folder: Path, tree: Tree) -> None:
    # The incomplete folder of a process that was killed before its run existed.
    _remove(folder)
    folder.mkdir(parents=True)
    write_changes(folder, Tree(), tree)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
