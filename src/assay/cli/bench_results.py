"""`assay bench report`, `compare` and `replay`: reports and comparisons of results."""

import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.contracts.errors import ExitCode

if TYPE_CHECKING:
    from assay.bench.compare import Comparison
    from assay.bench.summary import Summary

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


def command_line() -> str:
    """Return the command as typed, for reports."""
    import shlex

    return shlex.join(["assay", *sys.argv[1:]])


def finished(work: Callable[[], Awaitable[None]]) -> bool:
    """Run the work; False if it was interrupted. Finished results are on the disk either way."""
    import anyio

    from assay.cli.signals import run_until_interrupted

    async def carry_out() -> bool:
        await work()
        return True

    return bool(anyio.run(run_until_interrupted, carry_out))


def summary_fields(summary: "Summary") -> dict[str, Any]:
    """Return the summary of a run as JSON."""
    from assay.bench.leaderboard import leaderboard_entry
    from assay.bench.result import Status

    return {
        "folder": str(summary.folder),
        "complete": summary.complete,
        "solved": summary.rate.successes,
        "counted": summary.rate.trials,
        "interval": summary.rate.interval,
        "statuses": {status.value: summary.count(status) for status in Status},
        "leaderboard": leaderboard_entry(summary, command_line()),
    }


def print_summary(summary: "Summary") -> None:
    """Print the summary of a run as a table."""
    from rich.table import Table

    from assay.bench.markdown_report import rate_cells
    from assay.bench.summary import rate_of
    from assay.cli.render.view import open_console

    asked = summary.asked
    shown = Table("language", "solved", "rate", "95 % interval", "not run", title=None)
    for language, results in summary.languages.items():
        not_run = sum(not result.counted for result in results)
        shown.add_row(language, *rate_cells(rate_of(results)), str(not_run) if not_run else "")
    shown.add_row("all", *rate_cells(summary.rate), "", style="bold")
    console = open_console()
    console.print(f"{asked['suite']}, {asked['model']}, track {asked['track']}", markup=False)
    console.print(shown)


@click.command()
@click.argument("folder", type=_FOLDER)
@click.option("--to", type=_FOLDER, help="Folder for the reports.  [default: FOLDER]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(folder: Path, *, to: Path | None, as_json: bool) -> None:
    """Write the reports of the run in FOLDER again: Markdown, HTML, and the leaderboard's YAML."""
    from assay.bench.reports import write_reports
    from assay.bench.summary import read_summary

    summary = read_summary(folder)
    place = to or folder
    place.mkdir(parents=True, exist_ok=True)
    written = write_reports(summary, place, command_line())
    if as_json:
        click.echo(json.dumps(summary_fields(summary)))
        return
    print_summary(summary)
    for path in written:
        click.echo(str(path))


@click.command()
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(a: Path, b: Path, *, as_json: bool) -> None:
    """Compare two runs: the exercises that changed, and McNemar's exact test."""
    from assay.bench.compare import compare as compare_runs
    from assay.bench.summary import read_summary

    _print_comparison(compare_runs(read_summary(a), read_summary(b)), as_json=as_json)


def _print_comparison(comparison: "Comparison", *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(comparison.fields()))
    else:
        click.echo(comparison.as_markdown(), nl=False)


@click.command()
@click.argument("folder", type=_FOLDER)
@click.option("--dataset", type=click.Path(path_type=Path), help="Folder or file of the exercises.")
@click.option("--out", type=_FOLDER, required=True, help="Folder for the replay's results.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Parallel exercises.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(folder: Path, **options: Any) -> int:
    """Repeat the run in FOLDER with its recorded model replies, and compare the results.

    Everything else runs again. Exit code 1 if an exercise ends differently.
    """
    from assay.bench.bench_run import order_of, run_bench
    from assay.bench.compare import compare as compare_runs
    from assay.bench.summary import read_summary
    from assay.cli.bench_display import open_bench_progress
    from assay.settings.load import load_settings

    settings = load_settings()
    order = order_of(folder, dataset=options["dataset"], jobs=options["jobs"])
    with open_bench_progress(silent=options["as_json"]) as watching:
        if not finished(partial(run_bench, order, settings, options["out"], watching)):
            return ExitCode.INTERRUPTED
    comparison = compare_runs(read_summary(folder), read_summary(options["out"]))
    _print_comparison(comparison, as_json=options["as_json"])
    same = not comparison.gained and not comparison.lost and not comparison.left_out
    return ExitCode.ACCEPTED if same else ExitCode.NOT_ACCEPTED
