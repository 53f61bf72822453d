"""`assay run`, `assay resume` and `assay replay`: start, continue and repeat runs.

The text of a goal comes from the command line, from a file, or from stdin.
"""

import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli.options import (
    BACKEND,
    ENV,
    FILE,
    FOLDER,
    JSON_OBJECT,
    json_option,
    option_group,
    to_json,
)
from assay.contracts.errors import AssayError, ExitCode, UsageError
from assay.contracts.events import RunEvent
from assay.contracts.goal import RunResult, Status

if TYPE_CHECKING:
    from assay.cli.render.view import View
    from assay.runs.request import RunCallbacks
    from assay.settings.load import Settings


_PAGE: Final = 100
"""Columns of a summary if stdout is not a terminal."""
_START_FIELD: Final = 19
"""Field of `/proc/PID/stat` after the name: the start time, in ticks since boot."""
_EXIT_CODES: Final = {
    Status.ACCEPTED: ExitCode.ACCEPTED,
    Status.NOT_ACCEPTED: ExitCode.NOT_ACCEPTED,
    Status.OUT_OF_BUDGET: ExitCode.BUDGET,
    Status.TAMPERED: ExitCode.TAMPERING,
    Status.INTERRUPTED: ExitCode.INTERRUPTED,
    Status.FAILED: ExitCode.INFRASTRUCTURE,
}

_NOT_WRITTEN: Final = (
    "nothing is written into {folder}: without a terminal, Assay cannot ask\n"
    "hint: `assay apply {run}` writes them; --yes writes them without asking"
)
_LAST_OPTIONS: Final = option_group(
    click.option(
        "--yes",
        is_flag=True,
        help="Write accepted files into the workspace without asking; required without a terminal.",
    ),
    click.option(
        "--wait",
        is_flag=True,
        help="If another run works on the folder, wait for it instead of failing.",
    ),
    click.option("--verbose", is_flag=True, help="Show more detail."),
)
"""Options of `run` and `resume`."""


@click.command(name="run")
@click.argument("goal")
@click.option(
    "--workspace",
    type=FOLDER,
    default=Path(),
    help="Folder to work on.  [default: the current folder]",
)
@click.option(
    "--check",
    "checks",
    multiple=True,
    metavar="CMD",
    help="Command that decides about acceptance (repeatable).",
)
@click.option(
    "--tests",
    multiple=True,
    metavar="PATH",
    help="Test file, folder or pytest node ID (FILE.py::TEST) that must pass (repeatable). "
    "The agent cannot change it.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="GLOB",
    help="Files the agent may change (repeatable).  [default: all except protected files]",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Files to leave out of the workspace, such as large data (repeatable).",
)
@click.option(
    "--include",
    multiple=True,
    metavar="PATH",
    help="Use this path although git ignores it or it looks like a secret (repeatable).",
)
@click.option("--model", help="Model to use: `auto`, `local`, PROVIDER[:MODEL], `scripted:FILE` …")
@BACKEND
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Package to install in the sandbox (repeatable).",
)
@ENV
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Host that sandboxed programs may reach (repeatable).",
)
@click.option(
    "--attempts",
    type=int,
    help="Maximum number of attempts.  [default: 8, or 16 for a model that runs here]",
)
@click.option(
    "--best-of", type=int, default=1, show_default=True, help="Attempts made in parallel."
)
@click.option("--budget-usd", type=float, help="Maximum cost in dollars.")
@click.option("--budget-tokens", type=int, help="Maximum number of tokens, read and written.")
@click.option(
    "--timeout", "timeout_s", type=float, help="Maximum duration in seconds.  [default: 1800]"
)
@click.option(
    "--baseline-timeout",
    "baseline_timeout_s",
    type=float,
    help="Seconds for each check on the untouched files, before the model is called; 0 skips it."
    "  [default: 60]",
)
@click.option(
    "--screening",
    type=click.Choice(["off", "warn", "block"]),
    help="What to do with code that screening flags.  [default: warn]",
)
@click.option(
    "--memory",
    type=click.Choice(["off", "plan", "action", "all"]),
    help="When to recall lessons from earlier failures.  [default: all]",
)
@json_option("Print one JSON object at the end.")
@click.option(
    "--events",
    type=FILE,
    help="Write every event to this file, as JSON lines.",
)
@click.option("--commit", is_flag=True, help="Commit the accepted change on the current branch.")
@click.option(
    "--branch",
    metavar="NAME",
    help="Commit the accepted change on this new branch; the folder itself is not changed.",
)
@_LAST_OPTIONS
def run(goal: str, **options: Any) -> int:
    """Write code for GOAL until an independent check accepts it or a limit is reached.

    GOAL is a sentence, @FILE to read it from a file, or - to read it from stdin.

    Example: assay run "Fix the failing test" --tests tests --branch fix-test

    Exit codes: 0 accepted, 1 not accepted, 2 usage, 3 budget, 4 infrastructure, 5 tampering found,
    70 a defect of Assay, 130 interrupted, 141 stdout was closed by its reader.
    """
    from assay.runs.request import build_request
    from assay.runs.runner import start_run

    settings = _settings_of(options["workspace"], _overrides(options))
    request = build_request(
        settings,
        read_goal(goal),
        workspace=options["workspace"],
        checks=options["checks"],
        tests=options["tests"],
        allowed=options["allow"],
        exclude=options["exclude"],
        include=options["include"],
        best_of=options["best_of"],
        packages=options["packages"],
        env=options["env"],
        hosts=options["hosts"],
        commit=options["commit"],
        branch=options["branch"],
    )
    return _run_with_display(partial(start_run, request, settings), options)


@click.command(name="resume")
@click.argument("run_id", metavar="RUN")
@json_option("Print one JSON object at the end.")
@click.option(
    "--events",
    type=FILE,
    help="Write every event from here on to this file, as JSON lines.",
)
@_LAST_OPTIONS
def resume(run_id: str, **options: Any) -> int:
    """Continue RUN where it stopped. Model replies that it has recorded are used again."""
    from assay.runs.runner import resume_run
    from assay.settings.load import load_settings
    from assay.storage.run_store import RunStore

    workspace = RunStore(load_settings().state_dir).open(run_id).request.workspace
    settings = _settings_of(workspace, {}) if workspace else load_settings()
    return _run_with_display(partial(resume_run, run_id, settings), options)


@click.command(name="replay")
@click.argument("run_id", metavar="RUN")
@JSON_OBJECT
@click.option("--verbose", is_flag=True, help="Show more detail.")
def replay(run_id: str, *, as_json: bool, verbose: bool) -> int:
    """Repeat RUN without a model: execute everything again and compare the results."""
    import anyio

    from assay.cli.render.view import open_view
    from assay.runs.replay import replay_run
    from assay.settings.load import load_settings

    with open_view(verbose=verbose) as watch:
        comparison = anyio.run(replay_run, run_id, load_settings(), watch)
    if as_json:
        click.echo(to_json(comparison.fields()))
    else:
        for line in comparison.lines():
            click.echo(line)
    return ExitCode.ACCEPTED if comparison.same else ExitCode.NOT_ACCEPTED


def _settings_of(workspace: Path, overrides: dict[str, Any]) -> "Settings":
    """Load the settings for a workspace, and print which names of its `.env` are used."""
    from assay.settings.load import load_settings, project_notice
    from assay.settings.types import secrets_in
    from assay.telemetry.logs import hide_secrets

    settings = load_settings(overrides, project=workspace)
    hide_secrets(secrets_in(settings))
    if notice := project_notice(workspace):
        click.echo(notice, err=True)
    return settings


def _overrides(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "sandbox": {"backend": options["backend"]},
        "models": {
            "default": options["model"],
            "budget": {"usd": options["budget_usd"], "tokens": options["budget_tokens"]},
        },
        "agent": {
            "attempts": options["attempts"],
            "timeout_s": options["timeout_s"],
            "baseline_timeout_s": options["baseline_timeout_s"],
            "screening": options["screening"],
            "memory": options["memory"],
        },
    }


def _run_with_display(
    carry: Callable[["RunCallbacks"], Coroutine[Any, Any, RunResult]], options: dict[str, Any]
) -> int:
    """Show a run while it works, and then its result."""
    import anyio

    from assay.cli.terminal import run_until_interrupted
    from assay.runs.request import RunCallbacks

    with ExitStack() as stack:
        stage = stack.enter_context(closing(_RunDisplay(verbose=options["verbose"])))
        listeners: list[Callable[[RunEvent], None]] = [stage]
        if options["events"]:
            listeners.append(_event_writer(options["events"], stack))
        callbacks = RunCallbacks(
            listeners=tuple(listeners),
            confirm=_confirm(stage, unasked=options["yes"]),
            on_notice=stage.opening.on_notice,
            on_progress=stage.opening.on_progress,
            on_stored=stage.on_stored,
            wait=options["wait"],
        )
        try:
            outcome = anyio.run(run_until_interrupted, partial(carry, callbacks))
        except click.Abort:
            # Ctrl-C instead of an answer: nothing was written, and the run can be resumed.
            outcome = None
        except AssayError as error:
            stage.close()
            _say_how_to_go_on(error, stage.run_id, as_json=options["as_json"])
            raise
    return _print_result(outcome, stage.run_id, as_json=options["as_json"])


class _RunDisplay:
    """The terminal during a run: first the progress of downloads, then the run itself."""

    def __init__(self, *, verbose: bool) -> None:
        from assay.cli.terminal import open_progress

        self._verbose = verbose
        self._shown = ExitStack()
        self.opening = self._shown.enter_context(open_progress())
        self.view: View | None = None
        self.run_id = ""
        """Empty: no run that can be resumed."""

    def on_stored(self, run_id: str) -> None:
        self.run_id = run_id

    def __call__(self, event: RunEvent) -> None:
        from assay.cli.render.view import open_view

        if self.view is None:
            self._shown.close()
            self.view = self._shown.enter_context(open_view(verbose=self._verbose))
        self.view(event)

    def close(self) -> None:
        self._shown.close()


def _event_writer(path: Path, stack: ExitStack) -> Callable[[RunEvent], None]:
    from assay.cli.render.view import json_event

    try:
        # Without a buffer, so that a crash loses no event.
        file = stack.enter_context(path.open("wb", buffering=0))
    except OSError as error:
        raise UsageError(f"cannot write events to {str(path)!r}: {error.strerror}") from error
    broken = False

    def write(event: RunEvent) -> None:
        nonlocal broken
        if broken:
            return
        try:
            file.write(to_json(json_event(event)).encode() + b"\n")
        except OSError as error:
            # A failing event file does not stop the run.
            broken = True
            said = f"events are no longer written to {str(path)!r}: {error.strerror}"
            click.echo(said, err=True)

    return write


def _confirm(stage: _RunDisplay, *, unasked: bool) -> Callable[[str], bool]:
    """Return a callback that asks before Assay changes files in the user's folder."""
    from assay.cli.terminal import interruptible

    def ask(folder: str) -> bool:
        if unasked:
            return True
        with stage.view.aside() if stage.view else nullcontext(), interruptible():
            if not sys.stdin.isatty() or not sys.stderr.isatty():
                click.echo(_NOT_WRITTEN.format(folder=folder, run=stage.run_id), err=True)
                return False
            return click.confirm(f"Write the accepted files into {folder}?", default=True, err=True)

    return ask


def _print_result(outcome: RunResult | None, run_id: str, *, as_json: bool) -> int:
    from assay.cli.render.summary import print_summary
    from assay.cli.render.view import json_outcome, open_console

    if outcome is None:
        return _interrupted(run_id, as_json=as_json)
    # The time the user waited, which includes the start of the process.
    outcome = replace(outcome, wall_s=max(outcome.wall_s, _since_start_s()))
    if as_json:
        click.echo(to_json(json_outcome(outcome)))
    else:
        console = open_console()
        if not console.is_terminal:
            console.width = _PAGE
        print_summary(console, outcome, outcome.diff, folder=outcome.folder, local=outcome.local)
    return _EXIT_CODES[outcome.status]


def _since_start_s() -> float:
    """Return how long this process has existed."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def _say_how_to_go_on(error: AssayError, run_id: str, *, as_json: bool) -> None:
    """Print how to resume a run that failed; the caller reports the error itself."""
    if not run_id:
        return
    if as_json:
        fields = {"outcome": Status.FAILED.value, "run": run_id, "reason": str(error)}
        click.echo(to_json(fields))
    click.echo(f"nothing is lost; continue with: assay resume {run_id}", err=True)


def _interrupted(run_id: str, *, as_json: bool) -> int:
    hint = f"assay resume {run_id}" if run_id else ""
    if as_json:
        click.echo(to_json({"outcome": Status.INTERRUPTED.value, "run": run_id}))
    click.echo("interrupted; nothing is lost" if hint else "interrupted", err=True)
    if hint:
        click.echo(f"continue with: {hint}", err=True)
    return ExitCode.INTERRUPTED


_STDIN: Final = "-"
_FILE: Final = "@"


def read_goal(word: str) -> str:
    """Return the goal that an argument stands for.

    Raises:
        UsageError: If the file or stdin cannot be read, is empty, or is not text.
    """
    if word == _STDIN:
        return _text(sys.stdin.buffer.read(), "stdin")
    if not word.startswith(_FILE):
        return word
    name = word.removeprefix(_FILE)
    try:
        content = Path(name).expanduser().read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(
            f"the goal cannot be read from {name!r}: {reason}",
            hint="check the path; a goal that itself starts with @ needs a space before it",
        ) from error
    return _text(content, repr(name))


def _text(content: bytes, source: str) -> str:
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"the goal in {source} is not text", hint="give it as UTF-8 text")
    if not text:
        raise UsageError(f"the goal in {source} is empty", hint="describe the task")
    return text
