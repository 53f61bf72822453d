"""Results as tables, for a terminal or for Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table as TerminalTable

from benchmarks.comparison.contenders import CONTENDERS, contender
from benchmarks.comparison.measurements import (
    DO_NOTHING,
    PANDAS,
    PROGRAMS,
    Latency,
    Measurements,
    Spread,
    times_as_long,
)
from benchmarks.comparison.targets import BARE, DOCKER_RUN, Check

ABSENT: Final = "-"
_MARK: Final = {True: "met", False: "MISSED", None: "not measured"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of text; every column except the first ones, which `words` names, holds numbers."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def to_markdown(self) -> str:
        marks = ["---" if place < self.words else "---:" for place in range(len(self.columns))]
        lines = [self.columns, marks, *self.rows]
        drawn = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"## {self.title}\n\n{self.note}\n\n{drawn}\n"

    def to_terminal(self) -> TerminalTable:
        drawn = TerminalTable(
            title=self.title, caption=self.note, title_justify="left", caption_justify="left"
        )
        for place, column in enumerate(self.columns):
            drawn.add_column(column, justify="left" if place < self.words else "right")
        for row in self.rows:
            drawn.add_row(*row)
        return drawn


def milliseconds(spread: Spread | None) -> str:
    if spread is None:
        return "failed"
    return " / ".join(_short(value) for value in (spread.min_ms, spread.p50_ms, spread.p95_ms))


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _factor(value: float | None) -> str:
    if value is None:
        return ABSENT
    digits = ".2g" if value < 1 else ".1f" if value < 10 else ".0f"
    return f"{value:{digits}} x"


def build_tables(measured: Measurements, checks: Sequence[Check]) -> list[Table]:
    tables = [_latency_table(measured), _burst_table(measured), _rate_table(measured)]
    tables += [_memory_table(measured), _target_table(checks)]
    return [table for table in tables if table.rows]


def _latency_table(measured: Measurements) -> Table:
    rows: list[list[str]] = []
    for who in CONTENDERS:
        for scope, label, timed in (
            ("whole", who.label, who.timed),
            ("run", who.label, "run alone, sandbox open"),
        ):
            found = {
                item.program: item
                for item in measured.latencies
                if (item.runner, item.scope) == (who.name, scope)
            }
            if found:
                cells = [_latency_cells(measured, found.get(program)) for program in PROGRAMS]
                rows.append([label, timed, *cells[0], *cells[1], _count(found.values())])
    return Table(
        title="One execution at a time",
        note=f"Milliseconds, min / p50 / p95. {measured.rounds} rounds; in each of them every "
        "runner runs every program once, in random order, with a pause of "
        f"{measured.pause_ms} ms before each execution, in which a pool can refill. Output is "
        "captured and the exit code checked. The factors compare medians.",
        columns=(
            "runner",
            "what is timed",
            *_latency_columns(DO_NOTHING),
            *_latency_columns(PANDAS),
            "n",
        ),
        rows=rows,
        words=2,
    )


def _latency_columns(program: str) -> tuple[str, str, str]:
    return (f"`{program}`", "bare ÷ it", "docker run ÷ it")


def _latency_cells(measured: Measurements, item: Latency | None) -> list[str]:
    if item is None:
        return [ABSENT] * 3
    p50 = measured.p50_ms(item.runner, item.program, item.scope)
    bare, docker = (measured.p50_ms(name, item.program) for name in (BARE, DOCKER_RUN))
    return [
        milliseconds(item.spread),
        _factor(times_as_long(bare, p50)),
        _factor(times_as_long(docker, p50)),
    ]


def _count(items: Iterable[Latency]) -> str:
    """Return how often each program succeeded, and how often one failed."""
    items = list(items)
    counts = dict.fromkeys(str(item.spread.count if item.spread else 0) for item in items)
    errors = sum(item.errors for item in items)
    return ", ".join([*counts, *([f"{errors} failed"] if errors else [])])


def _burst_table(measured: Measurements) -> Table:
    return Table(
        title="Back to back",
        note="Milliseconds, min / p50 / p95, for a fresh sandbox each: open + run + close. One "
        "client that never pauses. The first executions find a full pool; after them each has a "
        "process made for itself, while the pool competes for the same processors.",
        columns=("runner", "program", f"first {measured.pool_size}", "after them", "failed"),
        rows=[
            [
                contender(item.runner).label,
                f"`{item.program}`",
                milliseconds(item.first),
                milliseconds(item.rest),
                str(item.errors),
            ]
            for item in measured.bursts
        ],
        words=2,
    )


def _rate_table(measured: Measurements) -> Table:
    clients = measured.rates[0].clients if measured.rates else 0
    return Table(
        title="Executions per second",
        note=f"{clients} clients that never pause, in slices of one second, in turns. Native: a "
        "fresh sandbox each, open + run + close.",
        columns=("runner", "program", "executions/s", "executions", "failed"),
        rows=[
            [
                contender(item.runner).label,
                f"`{item.program}`",
                _short(item.per_s),
                str(item.executions),
                str(item.errors),
            ]
            for item in measured.rates
        ],
        words=2,
    )


def _memory_table(measured: Measurements) -> Table:
    return Table(
        title="Memory per idle sandbox",
        note="MB, numpy and pandas imported. Private: pages nobody else has. Proportional: shared "
        "pages divided by the number of their owners. A native sandbox is two processes; its "
        "parents are shared by all.",
        columns=("runner", "copies", "private", "proportional", "with a share of the parents"),
        rows=[
            [
                contender(item.runner).label,
                str(item.copies),
                f"{item.private_mb:.2f}",
                f"{item.proportional_mb:.2f}",
                f"{item.with_parents_mb:.2f}",
            ]
            for item in measured.memory
        ],
    )


def _target_table(checks: Sequence[Check]) -> Table:
    return Table(
        title="Targets",
        note="Medians of the series above.",
        columns=("target", "wanted", "measured", ""),
        rows=[[check.target, check.wanted, check.measured, _MARK[check.met]] for check in checks],
        words=4,
    )
