"""Failures and snippets in a terminal: tables, single records, and a chart over time."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from assay.cli.render.text import one_line, plain
from assay.cli.render.view import open_console
from assay.memory.history import History
from assay.memory.snippets import SnippetRecord, signatures_of
from assay.memory.types import FailureRecord
from assay.text.formatting import count

_DAY_S: Final = 86_400
_BAR: Final = 40


def print_failures(found: Sequence[FailureRecord]) -> None:
    """Print a table of failures."""
    _print_table(
        ("id", "when", "seen", "helped", "failure", "lesson"),
        [
            (
                record,
                record.seen,
                one_line(record.signature),
                one_line(record.lesson.partition(" -> ")[2] or record.lesson),
            )
            for record in found
        ],
    )


def print_snippets(found: Sequence[SnippetRecord]) -> None:
    """Print a table of snippets."""
    _print_table(
        ("id", "when", "offered", "helped", "snippet", "made for"),
        [(record, record.used, _called(record), one_line(record.purpose)) for record in found],
    )


def _print_table(
    titles: Sequence[str],
    rows: Sequence[tuple[FailureRecord | SnippetRecord, int, str, str]],
) -> None:
    """Print records with a count, a name, and their text."""
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(title, "bold") for title in titles))
    for record, number, name, text in rows:
        judged = record.helped + record.harmed
        style = "dim" if record.retired else ""
        table.add_row(
            Text(record.id[:8], style, no_wrap=True),
            Text(_day(record.last_seen), "dim", no_wrap=True),
            Text(str(number), style, justify="right"),
            Text(f"{record.helped}/{judged}" if judged else "", style, justify="right"),
            Text(name, style, no_wrap=True, overflow="ellipsis"),
            Text(
                record.retired or text or "unknown",
                "yellow" if record.retired else "green" if text else "dim",
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    open_console().print(table)


def print_failure(record: FailureRecord) -> None:
    """Print one failure in full."""
    console = open_console()
    console.print(Text(one_line(record.signature, 300), "bold"), soft_wrap=True)
    state = f"retired: {record.retired}" if record.retired else f"worth {record.worth:.2f}"
    lines = {
        "id": record.id,
        "lesson": record.lesson or "unknown",
        "goal": one_line(record.goal, 500),
        "seen": f"{record.seen} times, from {_day(record.first_seen)} to {_day(record.last_seen)}",
        "shown": f"{record.used} times; helped {record.helped}, harmed {record.harmed}; {state}",
        "where": record.frame,
        "library": record.library,
        "language": " ".join(part for part in (record.language, record.tool) if part),
        "last run": record.run,
        "visible": "to all projects" if record.shared else f"in {record.project}",
        "environment": record.environment,
    }
    _print_fields(lines)
    _print_texts({"cause": record.action, "fix": record.fix})


def print_snippet(record: SnippetRecord) -> None:
    """Print one snippet in full."""
    open_console().print(Text(_called(record), "bold"), soft_wrap=True)
    state = f"retired: {record.retired}" if record.retired else f"worth {record.worth:.2f}"
    _print_fields(
        {
            "id": record.id,
            "made for": one_line(record.purpose, 500),
            "accepted as": record.grade,
            "tested": f"{record.passed} times, from {_day(record.first_seen)} "
            f"to {_day(record.last_seen)}",
            "offered": f"{record.used} times; helped {record.helped}, harmed {record.harmed}; "
            f"{state}",
            "last run": record.run,
            "visible": "to all projects" if record.shared else f"in {record.project}",
            "environment": record.environment,
        }
    )
    _print_texts({record.path: record.source, record.test_path: record.test})


def _called(record: SnippetRecord) -> str:
    return one_line(", ".join(signatures_of(record)), 200)


def _print_fields(fields: Mapping[str, str]) -> None:
    console = open_console()
    for name, value in fields.items():
        if value:
            text = Text.assemble((f"{name:12}", "dim"), one_line(value, 500))
            console.print(text, soft_wrap=True)


def _print_texts(texts: Mapping[str, str]) -> None:
    console = open_console()
    for title, text in texts.items():
        if text:
            console.print(Text(f"\n{one_line(title)}:", "bold"), soft_wrap=True)
            console.print(Text(plain(text.rstrip())), soft_wrap=True)


def print_history(history: History) -> None:
    """Print the number of records, how often they helped, and failures over time."""
    console = open_console()
    console.print(
        f"{history.records} kinds of failure, {history.with_lesson} with a lesson, "
        f"{history.shared} for all projects; retired: {history.harmful} harmful, "
        f"{history.stale} stale",
        soft_wrap=True,
    )
    judged = history.helped + history.harmed
    share = f" ({history.helped / judged:.0%})" if judged else ""
    console.print(
        f"lessons were shown {history.used} times; of {judged} judged, "
        f"{history.helped} helped{share}",
        soft_wrap=True,
    )
    if history.snippets:
        console.print(
            f"{count(history.snippets, 'snippet')}, {history.snippets_retired} of them retired; "
            f"offered {history.snippets_used} times, helped {history.snippets_helped}, "
            f"harmed {history.snippets_harmed}",
            soft_wrap=True,
        )
    if history.periods:
        console.print()
        console.print(_picture(history))
    if history.frequent:
        console.print(Text("\nmost frequent", "bold"))
    for essence, seen in history.frequent:
        console.print(Text(f"{seen:6}  {one_line(essence, 120)}"), soft_wrap=True)


def _picture(history: History) -> RenderableType:
    """Draw a bar for each period: new failures and repeated ones."""
    table = Table.grid(padding=(0, 1))
    title = Text.assemble("failures: ", ("█ new ", "cyan"), ("▒ repeated", "yellow"))
    table.add_row(Text("from", "bold"), title, Text("all", "bold"), Text("repeated", "bold"))
    largest = max(period.failures for period in history.periods)
    for period in history.periods:
        new = period.failures - period.repeats
        drawn_new, drawn_again = (round(n / largest * _BAR) for n in (new, period.repeats))
        bar = Text.assemble(("█" * drawn_new, "cyan"), ("▒" * drawn_again, "yellow"))
        share = f"{period.repeats / period.failures:.0%}" if period.failures else ""
        table.add_row(
            Text(_begin(period.begins_at, history.period_s), "dim", no_wrap=True),
            bar,
            Text(str(period.failures), justify="right"),
            Text(share, justify="right"),
        )
    return table


def _begin(seconds: float, width_s: float) -> str:
    shape = "%Y-%m-%d" if width_s >= _DAY_S else "%m-%d %H:%M"
    return datetime.fromtimestamp(seconds, UTC).strftime(shape)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d")
