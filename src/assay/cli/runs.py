"""`assay runs` and `assay show`: the list of runs, and the details of one."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli.options import FOLDER, JSON_ARRAY, JSON_OBJECT, YES, to_json
from assay.cli.terminal import confirm
from assay.contracts.errors import JournalError

if TYPE_CHECKING:
    from rich.text import Text

    from assay.storage.journal import RecordedEvent
    from assay.storage.run_store import Run, RunStore, RunSummary

_STYLES: Final = {
    "accepted": "green",
    "running": "cyan",
    "tampered": "magenta",
    "failed": "red",
    "damaged": "red",
}
_DAY_S: Final = 86400
_DIFF_LINES: Final = 400


@click.command(name="runs")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum.")
@click.option("--all", "show_all", is_flag=True, help="List all runs.")
@click.option(
    "--delete-older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Remove runs that started earlier than that, with all their data.",
)
@YES
@JSON_ARRAY
def runs(
    limit: int, *, show_all: bool, delete_older_than: float | None, yes: bool, as_json: bool
) -> None:
    """List runs, the newest first."""
    store = _store()
    if delete_older_than is not None:
        confirm(f"Remove all runs older than {delete_older_than:g} days?", yes=yes)
        removed = store.delete_older_than(delete_older_than * _DAY_S)
        click.echo(f"removed {len(removed)}" + (f": {', '.join(removed)}" if removed else ""))
        return
    found = store.list(None if show_all else limit)
    if as_json:
        click.echo(to_json([_summary_fields(one) for one in found]))
    elif found:
        _print_runs(found)
    else:
        click.echo("no runs yet; `assay run GOAL` starts one")


def _summary_fields(one: "RunSummary") -> dict[str, Any]:
    grade = one.outcome.grade if one.outcome else None
    return {
        "run": one.id,
        "created_at": _moment(one.created_at),
        "goal": one.goal,
        "status": str(one.status),
        "resumable": one.resumable,
        "grade": grade.value if grade else None,
        "attempts": one.attempts,
        "cost_usd": one.usage.cost_usd,
        "input_tokens": one.usage.input_tokens,
        "output_tokens": one.usage.output_tokens,
        "model": one.model,
        "workspace": one.workspace,
        "certificate": (one.outcome.certificate or None) if one.outcome else None,
        "trouble": one.trouble or None,
    }


def _print_runs(found: Sequence["RunSummary"]) -> None:
    from rich.table import Table
    from rich.text import Text

    from assay.cli.render.text import cost, one_line
    from assay.cli.render.view import open_console

    table = Table.grid(padding=(0, 2))
    titles = ("run", "when", "status", "grade", "attempts", "cost", "goal")
    table.add_row(*(Text(title, "bold") for title in titles))
    for one in found:
        grade = one.outcome.grade if one.outcome else None
        goal = Text(one_line(one.goal or one.trouble), no_wrap=True, overflow="ellipsis")
        table.add_row(
            Text(one.id, no_wrap=True),
            Text(_age(one.created_at), "dim", no_wrap=True),
            _status_text(str(one.status)),
            Text(grade.value if grade else ""),
            Text(str(one.attempts), justify="right"),
            Text(cost(one.usage) if one.usage.calls else "", no_wrap=True),
            goal,
        )
    console = open_console()
    console.print(table)


def _status_text(status: str) -> "Text":
    from rich.text import Text

    return Text(status.replace("_", " "), _STYLES.get(status, "yellow"), no_wrap=True)


@click.command(name="show")
@click.argument("name", metavar="[RUN]", default="")
@JSON_OBJECT
@click.option("--events", is_flag=True, help="Print the events, one JSON object per line.")
@click.option(
    "--files",
    type=FOLDER,
    metavar="DIR",
    help="Write the accepted files, or the best so far, into this new folder.",
)
def show(name: str, *, as_json: bool, events: bool, files: Path | None) -> None:
    """Show RUN, or the newest run: plan, attempts, tests and changes.

    RUN may be the beginning of a run's name.
    """
    store = _store()
    run = store.open(name)
    if files is not None:
        _write_files(store, run, files)
        return
    from assay.storage.journal import read_events

    recorded = tuple(read_events(run.folder))
    if events:
        from assay.contracts.jsonable import jsonable

        for one in recorded:
            line = {"at": _moment(one.at), "key": one.key, "event": jsonable(one.event)}
            click.echo(to_json(line))
    elif as_json:
        click.echo(to_json(_run_fields(store.summary(run.id), run, recorded)))
    else:
        _print_run(store.summary(run.id), run, recorded)


def _write_files(store: "RunStore", run: "Run", folder: Path) -> None:
    from assay.runs.stored_result import stored_result
    from assay.storage.read_workspace import write_tree

    result = stored_result(run)
    _, tree = result.trees(run.id)
    write_tree(folder, tree)
    accepted = store.summary(run.id).status == "accepted"
    what = "accepted" if accepted else "best" if result.after else "untouched"
    click.echo(f"wrote the {what} state, {len(tree.files)} files, to {folder}")


def _diff(run: "Run") -> str:
    """Return the diff of a run, or a comment on why there is none."""
    from assay.runs.stored_result import stored_result
    from assay.text.diffs import unified_diff

    try:
        result = stored_result(run)
    except JournalError as error:
        return f"# the files cannot be shown: {error}\n"
    return unified_diff(result.before, result.after) if result.before and result.after else ""


def _run_fields(
    summary: "RunSummary", run: "Run", recorded: Sequence["RecordedEvent"]
) -> dict[str, Any]:
    from assay.cli.render.view import json_event, json_outcome
    from assay.contracts.jsonable import jsonable

    return {
        **_summary_fields(summary),
        "request": jsonable(run.request),
        "outcome": json_outcome(summary.outcome) if summary.outcome else None,
        "diff": _diff(run),
        "events": [{"at": _moment(one.at), **json_event(one.event)} for one in recorded],
    }


def _print_run(summary: "RunSummary", run: "Run", recorded: Sequence["RecordedEvent"]) -> None:
    from rich.text import Text

    from assay.cli.render.summary import print_summary
    from assay.cli.render.test_matrix import MatrixView
    from assay.cli.render.view import PlainView, open_console
    from assay.contracts.events import Executed

    console = open_console()
    view = PlainView(console.file)
    for one in recorded:
        view(one.event)
    console.print()
    if summary.outcome is not None:
        folder = str(run.folder)
        print_summary(console, summary.outcome, _diff(run), folder=folder, diff_lines=_DIFF_LINES)
        return
    matrices = [one.event.test_matrix for one in recorded if isinstance(one.event, Executed)]
    if matrices:
        console.print(MatrixView(test_matrix=matrices[-1]))
    console.print(Text.assemble("run ", (summary.id, "bold"), ": ", _status_text(summary.status)))
    if summary.resumable:
        console.print(Text(f"assay resume {summary.id}", "cyan"), soft_wrap=True)


def _store() -> "RunStore":
    from assay.settings.load import load_settings
    from assay.storage.run_store import RunStore

    return RunStore(load_settings().state_dir)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _age(seconds: float) -> str:
    from assay.cli.render.text import clock

    age = max(time.time() - seconds, 0.0)
    if age < _DAY_S:
        return f"{clock(age)} ago"
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d")
