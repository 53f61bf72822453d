"""`assay memory`: lists, searches, exports, imports and removes failures and snippets."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from assay.cli.options import JSON_ARRAY, JSON_OBJECT, YES, json_option, to_json
from assay.cli.terminal import confirm
from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from assay.memory.history import History
    from assay.memory.snippets import SnippetRecord
    from assay.memory.sqlite_store import SqliteStore
    from assay.memory.types import FailureRecord, Similar

_NOTHING: Final = "no lessons yet; Assay records failures during `assay run`"
_LEAST_ID: Final = 4


@click.group(name="memory")
def command() -> None:
    """Manage lessons from earlier failures.

    They are kept in one file in the state folder, and written only by runs with a verdict.
    """


@command.command(name="list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum.")
@click.option("--all", "show_all", is_flag=True, help="List all.")
@JSON_ARRAY
def list_(limit: int, *, show_all: bool, as_json: bool) -> None:
    """List failures and snippets, the newest first."""
    with _store() as store:
        failures = store.records(limit=-1 if show_all else limit) if store else ()
        snippets = store.snippets() if store else ()
    if not show_all:
        snippets = snippets[:limit]
    if as_json:
        click.echo(to_json([_fields(record) for record in (*failures, *snippets)]))
    else:
        _print_tables(failures, snippets, nothing=_NOTHING)


@command.command()
@click.argument("beginning", metavar="ID")
@JSON_OBJECT
def show(beginning: str, *, as_json: bool) -> None:
    """Show one failure or snippet in full. ID may be the beginning of its id."""
    with _store() as store:
        record = _the_one(store, beginning)
    if as_json:
        click.echo(to_json(_fields(record)))
        return
    from assay.cli.render import memory_tables
    from assay.memory.snippets import SnippetRecord

    if isinstance(record, SnippetRecord):
        memory_tables.print_snippet(record)
    else:
        memory_tables.print_failure(record)


@command.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum.")
@JSON_ARRAY
def search(words: tuple[str, ...], limit: int, *, as_json: bool) -> None:
    """Find failures and snippets by words of the goal, error or code, and by similarity."""
    from assay.memory.ranking import search as search_in
    from assay.memory.ranking import search_snippets

    text = " ".join(words)
    with _store() as store:
        failures: tuple[Similar, ...] = search_in(store, text, limit) if store else ()
        snippets = search_snippets(store.snippets(), text, limit) if store else ()
    if as_json:
        found = [(one.record, one.likeness) for one in failures] + list(snippets)
        click.echo(to_json([{**_fields(one), "likeness": round(like, 3)} for one, like in found]))
        return
    _print_tables(
        [one.record for one in failures],
        [record for record, _ in snippets],
        nothing="no failure or snippet matches",
    )


@command.command()
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--retired", is_flag=True, help="Forget all that are harmful or stale.")
@click.option("--all", "everything", is_flag=True, help="Forget everything.")
@YES
@JSON_OBJECT
def forget(
    ids: tuple[str, ...], *, retired: bool, everything: bool, yes: bool, as_json: bool
) -> None:
    """Remove failures and snippets permanently; the file keeps nothing of their text."""
    if bool(ids) + retired + everything != 1:
        raise UsageError(
            "say what to forget: ids, --retired or --all", hint="`assay memory list` shows ids"
        )
    with _store() as store:
        if ids:
            chosen = [_the_one(store, one).id for one in ids]
        else:
            known = (*store.records(), *store.snippets()) if store else ()
            chosen = [record.id for record in known if everything or record.retired]
        if chosen:
            confirm(f"Forget {len(chosen)} of them permanently?", yes=yes)
        removed = store.forget(chosen) if store and chosen else 0
    click.echo(to_json({"forgotten": removed}) if as_json else f"forgot {removed}")


@command.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@json_option("No effect: output is always JSON lines.")
def export(file: TextIO, *, as_json: bool) -> None:
    """Write every failure and snippet to FILE, or to stdout, as lines of JSON."""
    from assay.memory.import_export import export_lines

    del as_json
    with _store() as store:
        records = (*store.records(), *store.snippets()) if store else ()
    file.writelines(f"{line}\n" for line in export_lines(records))
    if file is not sys.stdout:
        click.echo(f"exported {len(records)}", err=True)


@command.command(name="import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--shared", is_flag=True, help="Show them to every project.")
@JSON_OBJECT
def import_(file: TextIO, *, shared: bool, as_json: bool) -> None:
    """Import failures and snippets from FILE, an export. Known ones stay unchanged."""
    from assay.memory.import_export import import_lines

    try:
        records = tuple(import_lines(file, shared=shared))
    except UnicodeDecodeError as error:
        raise UsageError(
            "the file is not text", hint="import a file that `assay memory export` has written"
        ) from error
    with _store(make=True) as store:
        new, known = store.import_(records) if store else (0, 0)
    if as_json:
        click.echo(to_json({"imported": new, "known": known}))
    else:
        click.echo(f"imported {new}" + (f"; {known} were known already" if known else ""))


@command.command()
@JSON_OBJECT
def stats(*, as_json: bool) -> None:
    """Show failures and repeats over time, and whether lessons help."""
    from assay.memory.database import damaged_files
    from assay.memory.history import history_of

    with _store() as store:
        history = (
            history_of(store.records(), store.occurrences(), store.snippets())
            if store
            else history_of((), ())
        )
    damaged = [str(path) for path in damaged_files(_path())]
    if as_json:
        click.echo(to_json({**_history_fields(history), "set_aside": damaged}))
        return
    if history.records or history.snippets:
        from assay.cli.render.memory_tables import print_history

        print_history(history)
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


def _fields(record: "FailureRecord | SnippetRecord") -> dict[str, Any]:
    from assay.memory.snippets import SnippetRecord

    fields = asdict(record)
    for name in ("first_seen", "last_seen", "last_helped"):
        if name in fields:
            fields[name] = _moment(fields[name]) if fields[name] else None
    what = "snippet" if isinstance(record, SnippetRecord) else "failure"
    return {
        "what": what,
        **fields,
        "worth": round(record.worth, 3),
        "retired": record.retired or None,
    }


def _the_one(store: "SqliteStore | None", beginning: str) -> "FailureRecord | SnippetRecord":
    found: list[FailureRecord | SnippetRecord] = []
    if store and len(beginning) >= _LEAST_ID:
        found += store.find(beginning)
        found += [one for one in store.snippets() if one.id.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{len(found)} ids begin with {beginning!r}",
            hint="give more characters",
        )
    raise UsageError(
        f"no failure or snippet has the id {beginning!r}",
        hint=f"`assay memory list` shows ids; give at least {_LEAST_ID} characters",
    )


def _path() -> Path:
    from assay.memory.database import MEMORY
    from assay.settings.load import load_settings

    settings = load_settings()
    if settings.memory.store == "chroma":
        # The lessons are elsewhere; showing only the file would mislead.
        raise UsageError(
            "`memory.store` is chroma, and these commands read only the SQLite file",
            hint="use Chroma's own tools, or ASSAY_MEMORY__STORE=sqlite for what is in the file",
        )
    return settings.state_dir / MEMORY


@contextmanager
def _store(*, make: bool = False) -> Generator["SqliteStore | None"]:
    """Open the store; None if there is no file and `make` is false."""
    from assay.memory.sqlite_store import SqliteStore

    path = _path()
    if not make and not path.exists():
        yield None
        return
    store = SqliteStore(path, None, lambda text: click.echo(f"note: {text}", err=True))
    try:
        yield store
    finally:
        store.close()


def _print_tables(
    failures: Sequence["FailureRecord"], snippets: Sequence["SnippetRecord"], *, nothing: str
) -> None:
    from assay.cli.render import memory_tables

    if failures:
        memory_tables.print_failures(failures)
    if failures and snippets:
        click.echo()
    if snippets:
        memory_tables.print_snippets(snippets)
    if not failures and not snippets:
        click.echo(nothing)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
