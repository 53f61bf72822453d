"""The summary of a finished run: verdict, changes, tests, and next commands."""

import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from assay.cli.render.test_matrix import MatrixView
from assay.cli.render.text import (
    MEANING,
    clock,
    cost,
    count,
    ending,
    in_words,
    one_line,
    shortened,
    visible,
    withheld_line,
)
from assay.contracts.goal import RunResult, Status
from assay.contracts.verdict import Finding, Severity
from assay.contracts.workspace import ChangeKind

_STYLES: Final = {
    Status.ACCEPTED: "green",
    Status.NOT_ACCEPTED: "red",
    Status.OUT_OF_BUDGET: "yellow",
    Status.TAMPERED: "magenta",
    Status.INTERRUPTED: "yellow",
    Status.FAILED: "red",
}
_SEVERITIES: Final[dict[Severity, str]] = {
    "forgery": "red",
    "rejected": "red",
    "doubt": "yellow",
    "note": "dim",
}
_KINDS: Final[dict[ChangeKind, tuple[str, str]]] = {
    "added": ("+", "green"),
    "modified": ("~", "yellow"),
    "deleted": ("-", "red"),
}
_RESUMABLE: Final = frozenset({Status.INTERRUPTED, Status.FAILED, Status.OUT_OF_BUDGET})
_FILES_SHOWN: Final = 20
_MATRIX_ROWS: Final = 24
_WIDEST: Final = 300


def summary(
    outcome: RunResult, diff: str, *, folder: str = "", local: bool = False, diff_lines: int = 120
) -> RenderableType:
    """Return the summary of a run.

    `folder` is where the run is kept, `local` says that the model ran on this machine, and of the
    diff `diff_lines` are shown.
    """
    parts: list[RenderableType] = [_verdict(outcome), Text()]
    parts += _changes(outcome, diff, diff_lines)
    if outcome.test_matrix.rows:
        parts += [
            Rule(Text("tests", "bold"), align="left", style="dim"),
            MatrixView(test_matrix=outcome.test_matrix, max_rows=_MATRIX_ROWS),
            Text(),
        ]
    parts += _findings(outcome)
    parts.append(_facts(outcome, folder=folder, local=local))
    return Group(*parts)


def print_summary(
    console: Console,
    outcome: RunResult,
    diff: str,
    *,
    folder: str = "",
    local: bool = False,
    diff_lines: int = 120,
) -> None:
    """Print the summary of a run, and the commands that may follow."""
    console.print(summary(outcome, diff, folder=folder, local=local, diff_lines=diff_lines))
    console.print()
    for command, purpose in hints(outcome).items():
        # Not wrapped, so that a command can be copied.
        line = Text().append(command, "cyan").append(f"  {purpose}", "dim")
        console.print(line, soft_wrap=True)


def _verdict(outcome: RunResult) -> RenderableType:
    style = _STYLES[outcome.status]
    line = Text(ending(outcome).capitalize(), f"bold {style}", overflow="fold")
    if outcome.grade:
        line.append(f": {MEANING[outcome.grade]}.", "default not bold")
    reason = Text(one_line(outcome.reason, 600), "default" if outcome.grade is None else "dim")
    return Group(line, reason)


def _changes(outcome: RunResult, diff: str, diff_lines: int) -> Iterator[RenderableType]:
    if not outcome.changes:
        yield from (Text("No file was changed.", "dim"), Text())
        return
    # The best attempt of an unaccepted run is shown, but not as a result.
    title = "changes" if outcome.accepted else "best changes so far"
    yield Rule(Text(title, "bold"), align="left", style="dim")
    for change in outcome.changes[:_FILES_SHOWN]:
        symbol, style = _KINDS[change.kind]
        yield Text(f"{symbol} {one_line(str(change.path))}", style, overflow="fold")
    if left := len(outcome.changes[_FILES_SHOWN:]):
        yield Text(f"and {count(left, 'more file')}", "dim")
    yield Text()
    if diff.strip():
        yield from (_coloured(line) for line in _first_lines(diff, diff_lines))
        yield Text()


def _first_lines(diff: str, most: int) -> Iterator[str]:
    lines = diff.rstrip("\n").split("\n")
    yield from lines[:most]
    if left := max(len(lines) - most, 0):
        yield f"({count(left, 'line')} more)"


def _coloured(line: str) -> Text:
    if line.startswith(("+++", "---", "diff ", "index ")):
        style = "bold"
    elif line.startswith("@@"):
        style = "cyan"
    else:
        style = {"+": "green", "-": "red"}.get(line[:1], "")
    return Text(shortened(visible(line), _WIDEST), style, overflow="fold")


def _findings(outcome: RunResult) -> Iterator[RenderableType]:
    if not outcome.findings:
        return
    yield Rule(Text("findings", "bold"), align="left", style="dim")
    table = Table.grid(padding=(0, 2))
    for found in sorted(dict.fromkeys(outcome.findings), key=_severity):
        place = "" if found.path is None else one_line(str(found.path))
        line = "" if found.line is None or not place else f":{found.line}"
        told = Text(f"{place}{line}  " if place else "", "bold", overflow="fold")
        told.append(one_line(found.explanation, 600), "not bold")
        name = Text(found.kind.value, _SEVERITIES[found.severity])
        table.add_row(Text(found.severity, _SEVERITIES[found.severity]), name, told)
    yield from (table, Text())


def _severity(found: Finding) -> int:
    return list(_SEVERITIES).index(found.severity)


def _facts(outcome: RunResult, *, folder: str, local: bool) -> RenderableType:
    told = {
        "attempts": str(outcome.attempts),
        "cost": f"{cost(outcome.usage, local=local)} ({in_words(outcome.usage)})",
        "time": clock(outcome.wall_s),
        "withheld": withheld_line(outcome.withheld) if outcome.withheld else "",
        "certificate": one_line(outcome.certificate, 600),
        "commit": outcome.commit,
        "run": one_line(outcome.run) + (f" in {one_line(folder, 600)}" if folder else ""),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in told.items():
        if value:
            table.add_row(Text(name, "dim"), Text(value, overflow="fold"))
    return table


def hints(outcome: RunResult) -> dict[str, str]:
    """Return commands that may follow, with their purpose."""
    run = shlex.quote(one_line(outcome.run))
    commands: dict[str, str] = {}
    if outcome.certificate:
        certificate = shlex.quote(visible(outcome.certificate))
        if PurePath(outcome.certificate).parent.name == ".assay":
            commands[f"assay verify {certificate}"] = "to run the checks again"
        else:
            has = f"is a checkout of {outcome.commit[:12]}" if outcome.commit else "has the files"
            commands[f"assay verify {certificate} --workspace DIR"] = (
                f"to run the checks again; DIR {has}"
            )
    if outcome.status in _RESUMABLE:
        commands[f"assay resume {run}"] = "to continue where it stopped"
    commands[f"assay show {run}"] = "to see every step"
    return commands
