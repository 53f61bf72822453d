"""Agent tracks: Assay works on an exercise, with its tests or with their output only.

`agentic`: the tests are part of the workspace and decide, until they pass or the budget is used up.
`blind+exec`: the tests are hidden. Assay can run its own programs and checks, submits a solution,
and receives the tests' output once. The harness scores both like any other result.
"""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio

from assay.bench.exercise import Exercise
from assay.bench.score import Judge, Judgement
from assay.bench.single_shot import FAILURES, Account, names_of
from assay.bench.toolchains.toolchain import Commands
from assay.contracts.goal import RunLimits, RunResult, Status
from assay.contracts.messages import ModelFacts, Reply, Request
from assay.contracts.ports import Model, OnText, SandboxBackend, ignore_text
from assay.contracts.workspace import Tree
from assay.runs.request import Commission, RunCallbacks
from assay.runs.runner import Lent, resume_run, start_run
from assay.settings.load import Settings
from assay.storage.apply_changes import write_changes
from assay.storage.journal import DiskJournal
from assay.storage.run_store import RunStore

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
            policy=self.settings.agent.policy,
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
