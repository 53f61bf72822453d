"""`assay memory`: what earlier failures taught, to be looked at, searched, moved and forgotten."""

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.memory.history import History
    from assay.memory.records import FailureRecord, Similar
    from assay.memory.sqlite_store import SqliteStore

_NOTHING: Final = "nothing is remembered yet; failures of `assay run` are"
_LEAST_ID: Final = 4
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_BAR: Final = 40


@click.group(name="memory")
def command() -> None:
    """Look after what earlier failures taught.

    It is kept in one file in the folder of state, and written only by runs whose result was judged.
    """


@command.command(name="list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most.")
@click.option("--all", "show_all", is_flag=True, help="All of them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_(limit: int, *, show_all: bool, as_json: bool) -> None:
    """List failures, the newest first."""
    with _store() as store:
        found = store.records(limit=-1 if show_all else limit) if store else ()
    if as_json:
        click.echo(json.dumps([_fields(record) for record in found]))
    elif found:
        _print_table(found)
    else:
        click.echo(_NOTHING)


@command.command()
@click.argument("beginning", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(beginning: str, *, as_json: bool) -> None:
    """Show everything about one failure. The beginning of its id is enough."""
    with _store() as store:
        record = _the_one(store, beginning)
    if as_json:
        click.echo(json.dumps(_fields(record)))
    else:
        _print_record(record)


@command.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="At most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def search(words: tuple[str, ...], limit: int, *, as_json: bool) -> None:
    """Find failures by words of the goal, the error or the code, and those that are like them."""
    from assay.memory.searching import search as search_in  # noqa: PLC0415 - loaded when asked for

    with _store() as store:
        found: tuple[Similar, ...] = search_in(store, " ".join(words), limit) if store else ()
    if as_json:
        click.echo(
            json.dumps(
                [{**_fields(one.record), "likeness": round(one.likeness, 3)} for one in found]
            )
        )
    elif found:
        _print_table([one.record for one in found])
    else:
        click.echo("nothing like that is remembered")


@command.command()
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--retired", is_flag=True, help="All that proved harmful or grew stale.")
@click.option("--all", "everything", is_flag=True, help="Everything.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def forget(ids: tuple[str, ...], *, retired: bool, everything: bool, as_json: bool) -> None:
    """Remove failures for good: their words are not left in the file either."""
    if bool(ids) + retired + everything != 1:
        raise UsageError(
            "say what to forget: ids, --retired or --all", hint="`assay memory list` shows ids"
        )
    with _store() as store:
        if ids:
            chosen = [_the_one(store, one).id for one in ids]
        else:
            known = store.records() if store else ()
            chosen = [record.id for record in known if everything or record.retired]
        removed = store.forget(chosen) if store and chosen else 0
    click.echo(json.dumps({"forgotten": removed}) if as_json else f"forgot {removed}")


@command.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@click.option("--json", "as_json", is_flag=True, help="Accepted everywhere; it is JSON already.")
def export(file: TextIO, *, as_json: bool) -> None:
    """Write every failure to FILE, or to stdout, as lines of JSON."""
    from assay.memory.transfer import export_lines  # noqa: PLC0415

    del as_json
    with _store() as store:
        records = store.records() if store else ()
    file.writelines(f"{line}\n" for line in export_lines(records))
    if file is not sys.stdout:
        click.echo(f"exported {len(records)}", err=True)


@command.command(name="import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--shared", is_flag=True, help="Let every project see them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_(file: TextIO, *, shared: bool, as_json: bool) -> None:
    """Add the failures of an export. Those that are known already stay as they are."""
    from assay.memory.transfer import import_lines  # noqa: PLC0415

    try:
        records = tuple(import_lines(file, shared=shared))
    except UnicodeDecodeError as error:
        raise UsageError(
            "the file is not text", hint="import what `assay memory export` has written"
        ) from error
    with _store(make=True) as store:
        new, known = store.import_(records) if store else (0, 0)
    if as_json:
        click.echo(json.dumps({"imported": new, "known": known}))
    else:
        click.echo(f"imported {new}" + (f"; {known} were known already" if known else ""))


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stats(*, as_json: bool) -> None:
    """Show how failures and repeats develop, and whether lessons help."""
    from assay.memory.database import damaged_files  # noqa: PLC0415
    from assay.memory.history import history_of  # noqa: PLC0415

    with _store() as store:
        history = history_of(store.records() if store else (), store.occurrences() if store else ())
    damaged = [str(path) for path in damaged_files(_path())]
    if as_json:
        click.echo(json.dumps({**_history_fields(history), "set_aside": damaged}))
        return
    if history.records:
        _print_history(history)
    else:
        click.echo(_NOTHING)
    for path in damaged:
        click.echo(f"set aside because it was damaged: {path}")


def _history_fields(history: "History") -> dict[str, Any]:
    fields = asdict(history)
    fields["periods"] = [
        {**period, "begins_at": _moment(period["begins_at"])} for period in fields["periods"]
    ]
    fields["frequent"] = [{"failure": name, "seen": seen} for name, seen in history.frequent]
    return fields


def _fields(record: "FailureRecord") -> dict[str, Any]:
    fields = asdict(record)
    for name in ("first_seen", "last_seen", "last_helped"):
        fields[name] = _moment(fields[name]) if fields[name] else None
    return {**fields, "worth": round(record.worth, 3), "retired": record.retired or None}


def _the_one(store: "SqliteStore | None", beginning: str) -> "FailureRecord":
    found = store.find(beginning) if store and len(beginning) >= _LEAST_ID else ()
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{len(found)} failures have an id that begins with {beginning!r}",
            hint="give more of it",
        )
    raise UsageError(
        f"there is no failure {beginning!r}",
        hint=f"`assay memory list` shows ids; {_LEAST_ID} characters are the least",
    )


def _path() -> Path:
    from assay.memory.database import MEMORY  # noqa: PLC0415
    from assay.settings import load_settings  # noqa: PLC0415

    return load_settings().state_dir / MEMORY


@contextmanager
def _store(*, make: bool = False) -> Generator["SqliteStore | None"]:
    """Open all that is remembered; None if there is no file, and none is to be made."""
    from assay.memory.sqlite_store import SqliteStore  # noqa: PLC0415

    path = _path()
    if not make and not path.exists():
        yield None
        return
    store = SqliteStore(path, None, lambda text: click.echo(f"note: {text}", err=True))
    try:
        yield store
    finally:
        store.close()


def _print_table(found: Sequence["FailureRecord"]) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from assay.entrypoints.render.text import one_line  # noqa: PLC0415
    from assay.entrypoints.render.view import open_console  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    titles = ("id", "when", "seen", "helped", "failure", "lesson")
    table.add_row(*(Text(title, "bold") for title in titles))
    for record in found:
        judged = record.helped + record.harmed
        style = "dim" if record.retired else ""
        lesson = record.lesson.partition(" -> ")[2] or record.lesson
        table.add_row(
            Text(record.id[:8], style, no_wrap=True),
            Text(_day(record.last_seen), "dim", no_wrap=True),
            Text(str(record.seen), style, justify="right"),
            Text(f"{record.helped}/{judged}" if judged else "", style, justify="right"),
            Text(one_line(record.signature), style, no_wrap=True, overflow="ellipsis"),
            Text(
                record.retired or one_line(lesson) or "unknown",
                "yellow" if record.retired else "green" if record.lesson else "dim",
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    open_console().print(table)


def _print_record(record: "FailureRecord") -> None:
    from rich.text import Text  # noqa: PLC0415

    from assay.entrypoints.render.text import one_line, plain  # noqa: PLC0415
    from assay.entrypoints.render.view import open_console  # noqa: PLC0415

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
    for name, value in lines.items():
        if value:
            console.print(Text.assemble((f"{name:12}", "dim"), value), soft_wrap=True)
    for title, text in (("what led to it", record.action), ("what ended it", record.fix)):
        if text:
            console.print(Text(f"\n{title}:", "bold"))
            console.print(Text(plain(text.rstrip())), soft_wrap=True)


def _print_history(history: "History") -> None:
    from rich.text import Text  # noqa: PLC0415

    from assay.entrypoints.render.text import one_line  # noqa: PLC0415
    from assay.entrypoints.render.view import open_console  # noqa: PLC0415

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
    if history.periods:
        console.print()
        console.print(_picture(history))
    console.print(Text("\nmost frequent", "bold"))
    for essence, seen in history.frequent:
        console.print(Text(f"{seen:6}  {one_line(essence, 120)}"), soft_wrap=True)


def _picture(history: "History") -> "RenderableType":
    """Draw a bar for each period: what failed for the first time, and what had failed before."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

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


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
