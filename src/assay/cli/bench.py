"""`assay bench`: runs, validates, reports and compares benchmark suites.

Also the prerequisites of a benchmark: `pull` fetches suites, `toolchains` installs compilers.
"""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from assay.cli.options import BACKEND, FOLDER, JSON_OBJECT, json_option, option_group, to_json
from assay.contracts.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.bench.bench_run import BenchConfig
    from assay.bench.exercise import Language
    from assay.bench.score import ValidationResult
    from assay.bench.summary import Comparison, Summary
    from assay.settings.load import Settings


LANGUAGES: Final[tuple["Language", ...]] = ("python", "javascript", "go", "rust", "cpp", "java")


def read_languages(text: str) -> tuple["Language", ...]:
    """Parse languages separated by commas.

    Raises:
        UsageError: If one is unknown.
    """
    named = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in named:
        if word not in LANGUAGES:
            raise UsageError(
                f"unknown language {word!r}", hint=f"choose from: {', '.join(LANGUAGES)}"
            )
    return cast("tuple[Language, ...]", named)


@click.command()
@click.argument("suite", type=click.Choice(["polyglot"]))
@click.option("--from", "url", help="Another URL of the repository, or a folder with a clone.")
@click.option("--commit", help="Commit to use instead of the pinned one.")
@click.option("--to", type=FOLDER, help="Folder to write to.  [default: the cache]")
def pull(suite: str, *, url: str | None, commit: str | None, to: Path | None) -> None:
    """Fetch the exercises of SUITE with git, at the pinned commit."""
    import anyio

    from assay.bench.polyglot import COMMIT, URL
    from assay.bench.polyglot import pull as pull_clone
    from assay.bench.suites import pulled_to
    from assay.settings.load import load_settings

    folder = to or pulled_to(suite, load_settings().bench_dir)
    wanted = commit or COMMIT
    tell = partial(click.echo, err=True)
    fetched = anyio.run(pull_clone, url or URL, wanted, folder, tell)
    said = "is now" if fetched else "was already"
    click.echo(f"{suite} {said} at commit {wanted} in {folder}")


@click.command()
@click.option("--languages", default="", help="Only these languages, separated by commas.")
@click.option("--install", is_flag=True, help="Fetch and install what is missing.")
@JSON_OBJECT
def toolchains(*, languages: str, install: bool, as_json: bool) -> int:
    """Show which languages' tests can run in a sandbox here, and what is missing."""
    import anyio

    from assay.bench.toolchains.all import survey
    from assay.settings.load import load_settings

    tell = partial(click.echo, err=True)
    wanted = read_languages(languages) or LANGUAGES
    found = anyio.run(partial(survey, load_settings(), wanted, install=install, on_notice=tell))
    if as_json:
        click.echo(to_json({one.language: one.fields() for one in found}))
    else:
        for one in found:
            click.echo(f"{one.language:11} {one.state}")
            for fix in one.fixes:
                click.echo(f"{'':11} {fix}")
    ready = all(one.ready for one in found)
    return ExitCode.ACCEPTED if ready else ExitCode.INFRASTRUCTURE


def command_line() -> str:
    """Return the command as typed, for reports."""
    import shlex

    return shlex.join(["assay", *sys.argv[1:]])


def finished(work: Callable[[], Awaitable[None]]) -> bool:
    """Run the work; False if it was interrupted. Finished results are on the disk either way."""
    import anyio

    from assay.cli.terminal import run_until_interrupted

    async def carry_out() -> bool:
        await work()
        return True

    return bool(anyio.run(run_until_interrupted, carry_out))


def summary_fields(summary: "Summary") -> dict[str, Any]:
    """Return the summary of a run as JSON."""
    from assay.bench.reports import leaderboard_entry
    from assay.bench.store import Status

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

    from assay.bench.reports import rate_cells
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
@click.argument("folder", type=FOLDER)
@click.option("--to", type=FOLDER, help="Folder for the reports.  [default: FOLDER]")
@JSON_OBJECT
def report(folder: Path, *, to: Path | None, as_json: bool) -> None:
    """Write the reports of the run in FOLDER again: Markdown, HTML, and the leaderboard's YAML."""
    from assay.bench.reports import write_reports
    from assay.bench.summary import read_summary

    summary = read_summary(folder)
    place = to or folder
    place.mkdir(parents=True, exist_ok=True)
    written = write_reports(summary, place, command_line())
    if as_json:
        click.echo(to_json(summary_fields(summary)))
        return
    print_summary(summary)
    for path in written:
        click.echo(str(path))


@click.command()
@click.argument("a", type=FOLDER)
@click.argument("b", type=FOLDER)
@JSON_OBJECT
def compare(a: Path, b: Path, *, as_json: bool) -> None:
    """Compare two runs: the exercises that changed, and McNemar's exact test."""
    from assay.bench.summary import compare as compare_runs
    from assay.bench.summary import read_summary

    _print_comparison(compare_runs(read_summary(a), read_summary(b)), as_json=as_json)


def _print_comparison(comparison: "Comparison", *, as_json: bool) -> None:
    from assay.bench.reports import comparison_markdown

    if as_json:
        click.echo(to_json(comparison.fields()))
    else:
        click.echo(comparison_markdown(comparison), nl=False)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--dataset", type=click.Path(path_type=Path), help="Folder or file of the exercises.")
@click.option("--out", type=FOLDER, required=True, help="Folder for the replay's results.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Parallel exercises.")
@JSON_OBJECT
def replay(folder: Path, **options: Any) -> int:
    """Repeat the run in FOLDER with its recorded model replies, and compare the results.

    Everything else runs again. Exit code 1 if an exercise ends differently.
    """
    from assay.bench.bench_run import config_of, run_bench
    from assay.bench.summary import compare as compare_runs
    from assay.bench.summary import read_summary
    from assay.cli.bench_display import open_bench_progress
    from assay.settings.load import load_settings

    settings = load_settings()
    config = config_of(folder, dataset=options["dataset"], jobs=options["jobs"])
    with open_bench_progress(silent=options["as_json"]) as callbacks:
        if not finished(partial(run_bench, config, settings, options["out"], callbacks)):
            return ExitCode.INTERRUPTED
    comparison = compare_runs(read_summary(folder), read_summary(options["out"]))
    _print_comparison(comparison, as_json=options["as_json"])
    same = not comparison.gained and not comparison.lost and not comparison.left_out
    return ExitCode.ACCEPTED if same else ExitCode.NOT_ACCEPTED


_TRACKS: Final = ("blind", "blind+exec", "agentic")

_Options = dict[str, Any]


@click.group(name="bench")
def command() -> None:
    """Run benchmarks of models, alone or with Assay, and compare the results.

    A SUITE is `polyglot`, `humaneval`, or the folder of your own suite; see
    docs/reference/bench.md.
    """


_choosing: Final = option_group(
    click.option(
        "--dataset",
        type=click.Path(path_type=Path),
        help="Clone of polyglot, or the file of HumanEval.  [default: what was pulled]",
    ),
    click.option("--languages", default="", help="Only these languages, separated by commas."),
    click.option(
        "--only", multiple=True, metavar="GLOB", help="Only these exercises (repeatable)."
    ),
    click.option("--limit", type=int, metavar="N", help="At most N exercises over all languages."),
    click.option("--shard", default="1/1", metavar="I/N", help="Only shard I of N."),
    click.option("--strict", is_flag=True, help="Also run tests that polyglot leaves out."),
)
"""Options that select exercises."""


_judging: Final = option_group(
    click.option(
        "--test-jobs", type=int, default=0, help="Parallel test runs.  [default: processors]"
    ),
    click.option(
        "--test-timeout",
        "timeout_s",
        type=float,
        default=180.0,
        show_default=True,
        help="Timeout in seconds for the tests of one exercise.",
    ),
    click.option(
        "--verdict",
        type=click.Choice(["proof", "exit-code"]),
        default="proof",
        show_default=True,
        help="What decides: Assay's independent check, or the exit code as on the leaderboard.",
    ),
    BACKEND,
)
"""Options for running tests."""


@command.command()
@click.argument("suite")
@_choosing
@click.option(
    "--track", type=click.Choice(_TRACKS), default="blind", show_default=True,
    help="What the solver sees and may do.",
)  # fmt: skip
@click.option(
    "--model", help="Model or solver: `auto`, `local`, PROVIDER[:MODEL], `oracle`, `stub` …"
)
@click.option(
    "--attempts", type=int,
    help="Attempts per exercise.  [default: 2 in the blind tracks, 8 in the agentic track]",
)  # fmt: skip
@click.option("--timeout", "wall_s", type=float, default=1800.0, show_default=True,
              help="Seconds per exercise in the agentic track.")  # fmt: skip
@click.option("--repeat", type=int, default=1, show_default=True, help="Runs of each exercise.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Parallel exercises.")
@_judging
@click.option(
    "--validate/--no-validate", default=True,
    help="Validate the suite first.  [default: validate]",
)  # fmt: skip
@click.option("--budget-usd", type=float, help="Maximum cost in dollars of the whole run.")
@click.option("--budget-tokens", type=int, help="Maximum tokens of the whole run.")
@click.option("--out", type=FOLDER, help="Results; an unfinished run there continues.")
@json_option("Print one JSON object at the end.")
def run(suite: str, **options: Any) -> int:
    """Run the exercises of SUITE, and write results and reports into a folder.

    After an interruption, the same command continues the run. Exit codes: 0 done, 2 usage,
    3 budget, 4 some exercises could not be run (infrastructure error), 130 interrupted.
    """
    from assay.bench.bench_run import run_bench
    from assay.cli.bench_display import open_bench_progress
    from assay.settings.load import load_settings

    settings = load_settings(_overrides(options))
    config = _config(suite, settings, options)
    out: Path = options["out"] or _default_folder(config, settings)
    with open_bench_progress(silent=options["as_json"]) as callbacks:
        done = finished(partial(run_bench, config, settings, out, callbacks))
    if not done:
        click.echo(f"interrupted; the same command continues; results are in {out}", err=True)
        return ExitCode.INTERRUPTED
    return _conclude(out, as_json=options["as_json"])


def _conclude(out: Path, *, as_json: bool) -> int:
    from assay.bench.reports import write_reports
    from assay.bench.store import Status
    from assay.bench.summary import read_summary

    summary = read_summary(out)
    written = write_reports(summary, out, command_line())
    if as_json:
        click.echo(to_json(summary_fields(summary)))
    else:
        print_summary(summary)
        for path in written:
            click.echo(str(path))
    return ExitCode.INFRASTRUCTURE if summary.count(Status.INFRASTRUCTURE) else ExitCode.ACCEPTED


def _overrides(options: _Options) -> dict[str, Any]:
    budget = {"usd": options.get("budget_usd"), "tokens": options.get("budget_tokens")}
    return {
        "sandbox": {"backend": options.get("backend")},
        "models": {"default": options.get("model"), "budget": budget},
    }


def _config(suite: str, settings: "Settings", options: _Options) -> "BenchConfig":
    from assay.bench.bench_run import BenchConfig
    from assay.bench.suites import Selection, read_shard
    from assay.contracts.goal import RunLimits

    selection = Selection(
        languages=read_languages(options["languages"]),
        names=options["only"],
        limit=options["limit"],
        shard=read_shard(options["shard"]),
    )
    attempts = options.get("attempts")
    return BenchConfig(
        suite=suite,
        dataset=options["dataset"],
        strict=options["strict"],
        selection=selection,
        track=options.get("track", "blind"),
        model=settings.models.default,
        tries=2 if attempts is None else attempts,
        limits=RunLimits(
            attempts=8 if attempts is None else attempts, wall_s=options.get("wall_s", 1800.0)
        ),
        repeat=options.get("repeat", 1),
        jobs=options.get("jobs", 1),
        test_jobs=options["test_jobs"],
        timeout_s=options["timeout_s"],
        proof=options["verdict"] == "proof",
        validate=options.get("validate", True),
    )


def _default_folder(config: "BenchConfig", settings: "Settings") -> Path:
    model = "".join(letter if letter.isalnum() else "-" for letter in config.model).strip("-")
    suite = Path(config.suite).name
    return settings.state_dir / "bench" / f"{suite}--{config.track}--{model}"


@command.command()
@click.argument("suite")
@_choosing
@_judging
@json_option("Print one JSON object per exercise.")
def validate(suite: str, **options: Any) -> int:
    """Check that the tests of each exercise accept the reference and reject the stub.

    Results are cached until the exercise, the command or the toolchain changes. Exit code 1 if a
    reference is rejected.
    """
    from dataclasses import asdict

    import anyio

    from assay.bench.bench_run import validate_suite
    from assay.cli.bench_display import open_bench_progress
    from assay.cli.terminal import run_until_interrupted
    from assay.settings.load import load_settings

    settings = load_settings(_overrides(options))
    config = _config(suite, settings, options)
    with open_bench_progress(silent=options["as_json"]) as callbacks:
        work = partial(validate_suite, config, settings, callbacks)
        found = anyio.run(run_until_interrupted, work)
    if found is None:
        return ExitCode.INTERRUPTED
    results, not_run = found
    if options["as_json"]:
        lines = [*map(asdict, results)]
        lines += [{"exercise": name, "not_run": why} for name, why in not_run.items()]
        for line in lines:
            click.echo(to_json(line))
    else:
        _print_validation(results, not_run)
    accepted = all(result.oracle_accepted for result in results)
    return ExitCode.ACCEPTED if accepted else ExitCode.NOT_ACCEPTED


def _print_validation(results: "tuple[ValidationResult, ...]", not_run: dict[str, str]) -> None:
    for result in results:
        if not result.oracle_accepted:
            click.echo(f"reference rejected  {result.exercise}: {result.reason}")
        if not result.stub_rejected:
            click.echo(f"stub accepted       {result.exercise}")
    for name, why in not_run.items():
        click.echo(f"not run             {name}: {why}")
    clean = sum(result.clean for result in results)
    click.echo(f"{clean} of {len(results)} exercises are valid, {len(not_run)} not run")


@command.command(name="list")
@click.argument("suite")
@_choosing
def list_exercises(suite: str, **options: Any) -> None:
    """List the selected exercises of SUITE, and why some cannot run here."""
    from assay.bench.toolchains.all import find_toolchains
    from assay.settings.load import load_settings

    settings = load_settings()
    options |= {"test_jobs": 0, "timeout_s": 180.0, "verdict": "proof"}
    config = _config(suite, settings, options)
    exercises = config.selection.of(config.load_suite(settings))
    found = find_toolchains(settings, (one.language for one in exercises))
    for exercise in exercises:
        why_not = found.why_not(exercise)
        click.echo(f"{exercise.id}  (not run here: {why_not})" if why_not else exercise.id)


for subcommand in (compare, pull, replay, report, toolchains):
    command.add_command(subcommand)
