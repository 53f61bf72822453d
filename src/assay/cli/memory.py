"""`assay memory`: what earlier runs left behind, to be looked at, searched, moved and forgotten."""

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from assay.cli.confirm import YES, confirm
from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from assay.memory.history import History
    from assay.memory.snippets import SkillRecord
    from assay.memory.sqlite_store import SqliteStore
    from assay.memory.types import FailureRecord, Similar

_NOTHING: Final = "nothing is remembered yet; failures of `assay run` are"
_LEAST_ID: Final = 4


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
    """List failures and helpers, the newest first."""
    with _store() as store:
        failures = store.records(limit=-1 if show_all else limit) if store else ()
        skills = store.skills() if store else ()
    if not show_all:
        skills = skills[:limit]
    if as_json:
        click.echo(json.dumps([_fields(record) for record in (*failures, *skills)]))
    else:
        _print_tables(failures, skills, nothing=_NOTHING)


@command.command()
@click.argument("beginning", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(beginning: str, *, as_json: bool) -> None:
    """Show everything about one failure or helper. The beginning of its id is enough."""
    with _store() as store:
        record = _the_one(store, beginning)
    if as_json:
        click.echo(json.dumps(_fields(record)))
        return
    from assay.cli.render import memory_tables
    from assay.memory.snippets import SkillRecord

    if isinstance(record, SkillRecord):
        memory_tables.print_skill(record)
    else:
        memory_tables.print_failure(record)


@command.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="At most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def search(words: tuple[str, ...], limit: int, *, as_json: bool) -> None:
    """Find failures and helpers by words of the goal, the error or the code, and by likeness."""
    from assay.memory.search import search as search_in
    from assay.memory.search import search_skills

    text = " ".join(words)
    with _store() as store:
        failures: tuple[Similar, ...] = search_in(store, text, limit) if store else ()
        skills = search_skills(store.skills(), text, limit) if store else ()
    if as_json:
        found = [(one.record, one.likeness) for one in failures] + list(skills)
        click.echo(
            json.dumps([{**_fields(one), "likeness": round(like, 3)} for one, like in found])
        )
        return
    _print_tables(
        [one.record for one in failures],
        [record for record, _ in skills],
        nothing="nothing like that is remembered",
    )


@command.command()
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--retired", is_flag=True, help="All that proved harmful or grew stale.")
@click.option("--all", "everything", is_flag=True, help="Everything.")
@YES
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def forget(
    ids: tuple[str, ...], *, retired: bool, everything: bool, yes: bool, as_json: bool
) -> None:
    """Remove failures and helpers for good: their words are not left in the file either."""
    if bool(ids) + retired + everything != 1:
        raise UsageError(
            "say what to forget: ids, --retired or --all", hint="`assay memory list` shows ids"
        )
    with _store() as store:
        if ids:
            chosen = [_the_one(store, one).id for one in ids]
        else:
            known = (*store.records(), *store.skills()) if store else ()
            chosen = [record.id for record in known if everything or record.retired]
        if chosen:
            confirm(f"Forget {len(chosen)} of them for good?", yes=yes)
        removed = store.forget(chosen) if store and chosen else 0
    click.echo(json.dumps({"forgotten": removed}) if as_json else f"forgot {removed}")


@command.command()
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True), default="-")
@click.option("--json", "as_json", is_flag=True, help="Accepted everywhere; it is JSON already.")
def export(file: TextIO, *, as_json: bool) -> None:
    """Write every failure and helper to FILE, or to stdout, as lines of JSON."""
    from assay.memory.import_export import export_lines

    del as_json
    with _store() as store:
        records = (*store.records(), *store.skills()) if store else ()
    file.writelines(f"{line}\n" for line in export_lines(records))
    if file is not sys.stdout:
        click.echo(f"exported {len(records)}", err=True)


@command.command(name="import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--shared", is_flag=True, help="Let every project see them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_(file: TextIO, *, shared: bool, as_json: bool) -> None:
    """Add what an export holds. What is known already stays as it is."""
    from assay.memory.import_export import import_lines

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
    from assay.memory.database import damaged_files
    from assay.memory.history import history_of

    with _store() as store:
        history = (
            history_of(store.records(), store.occurrences(), store.skills())
            if store
            else history_of((), ())
        )
    damaged = [str(path) for path in damaged_files(_path())]
    if as_json:
        click.echo(json.dumps({**_history_fields(history), "set_aside": damaged}))
        return
    if history.records or history.skills:
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


def _fields(record: "FailureRecord | SkillRecord") -> dict[str, Any]:
    from assay.memory.snippets import SkillRecord

    fields = asdict(record)
    for name in ("first_seen", "last_seen", "last_helped"):
        if name in fields:
            fields[name] = _moment(fields[name]) if fields[name] else None
    what = "skill" if isinstance(record, SkillRecord) else "failure"
    return {
        "what": what,
        **fields,
        "worth": round(record.worth, 3),
        "retired": record.retired or None,
    }


def _the_one(store: "SqliteStore | None", beginning: str) -> "FailureRecord | SkillRecord":
    found: list[FailureRecord | SkillRecord] = []
    if store and len(beginning) >= _LEAST_ID:
        found += store.find(beginning)
        found += [one for one in store.skills() if one.id.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{len(found)} ids begin with {beginning!r}",
            hint="give more of it",
        )
    raise UsageError(
        f"nothing with the id {beginning!r} is remembered",
        hint=f"`assay memory list` shows ids; {_LEAST_ID} characters are the least",
    )


def _path() -> Path:
    from assay.memory.database import MEMORY
    from assay.settings.load import load_settings

    settings = load_settings()
    if settings.memory.store == "chroma":
        # What runs have learnt is elsewhere; showing the file as if it were all would be a lie.
        raise UsageError(
            "`memory.store` is chroma, and these commands look into the SQLite file only",
            hint="use Chroma's own tools, or ASSAY_MEMORY__STORE=sqlite for what is in the file",
        )
    return settings.state_dir / MEMORY


@contextmanager
def _store(*, make: bool = False) -> Generator["SqliteStore | None"]:
    """Open all that is remembered; None if there is no file, and none is to be made."""
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
    failures: Sequence["FailureRecord"], skills: Sequence["SkillRecord"], *, nothing: str
) -> None:
    from assay.cli.render import memory_tables

    if failures:
        memory_tables.print_failures(failures)
    if failures and skills:
        click.echo()
    if skills:
        memory_tables.print_skills(skills)
    if not failures and not skills:
        click.echo(nothing)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
