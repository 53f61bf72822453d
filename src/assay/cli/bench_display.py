"""The progress of a benchmark run: a bar with the time left, the rate and the cost so far."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.cli.terminal import open_bar
from assay.models.open import OpenOptions

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from assay.bench.bench_run import BenchCallbacks
    from assay.bench.exercise import Exercise
    from assay.bench.score import ValidationResult
    from assay.bench.store import Result


@dataclass(slots=True)
class _Stage:
    """The progress so far."""

    bar: "Progress"
    task: "TaskID"
    total: int = 0
    done: int = 0
    passed: int = 0
    counted: int = 0
    cost_usd: float | None = 0.0
    running: list[str] = field(default_factory=list[str])

    def say(self, sentence: str) -> None:
        self.bar.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def plan_validation(self, number: int) -> None:
        self.bar.update(self.task, total=number, completed=0, description="validate", visible=True)

    def show_validation(self, answer: "ValidationResult") -> None:
        self.bar.advance(self.task)
        if not answer.oracle_accepted:
            self.say(f"{answer.exercise}: its tests reject the reference: {answer.reason}")
        elif not answer.stub_rejected:
            self.say(f"{answer.exercise}: its tests accept the stub")

    def plan(self, total: int, done: int) -> None:
        self.total = total
        # Finished results arrive again one by one, and took no time now.
        self.bar.reset(self.task, total=total, description="run", visible=True)
        if done:
            self.say(f"{done} of {total} are done already")

    def start(self, exercise: "Exercise") -> None:
        self.running.append(exercise.id)
        self._show()

    def tell(self, result: "Result") -> None:
        if result.exercise in self.running:
            self.running.remove(result.exercise)
            again = f", started {result.retries + 1} times" if result.retries else ""
            self.say(
                f"{result.exercise}: {result.status.value} in {result.wall_s:.0f} s{again}"
                + ("" if result.passed else f": {result.reason}")
            )
        self.done += 1
        self.counted += result.counted
        self.passed += result.passed
        spent = result.usage.cost_usd
        known = self.cost_usd is not None and spent is not None
        self.cost_usd = (self.cost_usd or 0.0) + (spent or 0.0) if known else None
        self._show()

    def _show(self) -> None:
        rate = f"{self.passed}/{self.counted} solved" if self.counted else "none done"
        cost = "cost unknown" if self.cost_usd is None else f"${self.cost_usd:.2f}"
        now = ", ".join(self.running[:2]) + (" …" if len(self.running) > 2 else "")  # noqa: PLR2004 - a line's worth
        self.bar.update(self.task, completed=self.done, description=f"{rate}, {cost}  {now}")


@contextmanager
def open_bench_progress(*, silent: bool = False) -> Generator["BenchCallbacks"]:
    """Show a bar on stderr if that is a terminal, and each result as a line."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from assay.bench.bench_run import BenchCallbacks

    columns = (
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with open_bar(*columns, silent=silent) as bar:
        stage = _Stage(bar, bar.add_task("", total=None, visible=False))
        yield BenchCallbacks(
            opening=OpenOptions(on_notice=stage.say),
            on_plan=stage.plan,
            on_validation_plan=stage.plan_validation,
            on_validation=stage.show_validation,
            on_start=stage.start,
            on_result=stage.tell,
        )
