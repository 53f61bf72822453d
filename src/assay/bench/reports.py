"""Reports of a run, written next to its results.

A report is a list of headings, paragraphs, tables and charts. Markdown shows all but the charts.
HTML is one self-contained page with SVG charts, drawn without a library. The third format is the
one of the public leaderboard.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from assay.bench.store import RUN, Status, write_whole
from assay.bench.summary import Comparison, Rate, Summary, rate_of
from assay.contracts.errors import require

_MOST_REASON: Final = 140
_MEANINGS: Final = {
    "blind": "docs and stubs only, tests hidden, their whole output after a failed try",
    "blind+exec": "tests hidden; Assay runs its own code and checks, and reads their output",
    "agentic": "Assay, with the tests in sight, until they are passed or the budget is out",
}
_RATE_HEAD: Final = ("solved", "rate", "95 % interval")

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .7rem; text-align: left;
  border-bottom: 1px solid #d5dbe1; vertical-align: top; } th { font-weight: 600; }
svg { max-width: 100%; height: auto; margin: 1rem 0; display: block; }
@media (prefers-color-scheme: dark) { body { background: #14191d; color: #e4e9ed; }
  th, td { border-color: #37424b; } svg { background: #f7f9fa; border-radius: 6px; padding: 8px; } }
"""
_BOLD: Final = re.compile(r"\*\*(.+?)\*\*")

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a report."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report."""

    head: Row
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a report, which Markdown leaves out."""

    svg: str


Block = str | Heading | Table | Chart
"""A part of a report; text is a paragraph, in which `**` marks bold words."""


def to_markdown(blocks: Iterable[Block]) -> str:
    """Return a report as Markdown."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading():
                parts.append(f"{'#' * block.level} {block.text}")
            case Table():
                parts.append(table(block.head, block.rows))
            case Chart():
                pass
            case str():
                parts.append(block)
    return "\n\n".join(parts) + "\n"


def to_html(blocks: Iterable[Block], title: str) -> str:
    """Return a report as one page."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading():
                parts.append(f"<h{block.level}>{escape(block.text)}</h{block.level}>")
            case Table():
                head = "".join(f"<th>{escape(cell)}</th>" for cell in block.head)
                cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in block.rows)
                body = "".join(f"<tr>{row}</tr>" for row in cells)
                parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
            case Chart():
                parts.append(block.svg)
            case str():
                text = _BOLD.sub(r"<strong>\1</strong>", escape(block))
                parts.append(f"<p>{text}</p>")
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def rate_cells(rate: Rate) -> tuple[str, str, str]:
    """Return the cells of a rate: solved, share, interval."""
    low, high = rate.interval
    return (
        f"{rate.successes}/{rate.trials}",
        f"{100 * rate.value:.1f} %",
        f"{100 * low:.1f} to {100 * high:.1f} %",
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; escapes characters that would end a cell."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report_of(summary: Summary) -> list[Block]:
    """Build the report of a run."""
    asked = summary.asked
    state = "" if summary.complete else f" **Not complete: {len(summary.results)} so far.**"
    tries = f"{asked['tries']} tries" if asked["track"] != "agentic" else ""
    attempts = f"{asked['attempts']} attempts at most" if asked["attempts"] else ""
    limits = ", ".join(part for part in (tries, attempts) if part)
    languages: list[Row] = []
    for language, results in summary.languages.items():
        not_run = sum(not result.counted for result in results)
        seconds = sum(result.wall_s for result in results)
        costs = [result.usage.cost_usd for result in results]
        known = [cost for cost in costs if cost is not None]
        dollars = f"{sum(known):.4f}" if len(known) == len(costs) else "unknown"
        rate = rate_cells(rate_of(results))
        languages.append((language, *rate, str(not_run), f"{seconds:.0f}", dollars))
    statuses = [(status.value, summary.count(status)) for status in Status]
    return [
        Heading(f"{asked['suite']}: {asked['model']}, track {asked['track']}", level=1),
        (
            f"{summary.tasks} exercises ({asked['source']}), {limits}. Track {asked['track']}: "
            f"{_MEANINGS[asked['track']]}. Verdict by {asked['verdict']}; memory "
            f"{asked['memory']}; {asked['timeout_s']:.0f} s for tests.{state}"
        ),
        "Rates of different tracks say different things and do not belong into one column.",
        *_charts(summary),
        Heading("Rates"),
        Table(("what", *_RATE_HEAD), _rates(summary)),
        Heading("By language"),
        Table(("language", *_RATE_HEAD, "not run", "seconds", "dollars"), languages),
        Heading("What it took"),
        Table(("what", "in all", "per exercise"), _costs(summary)),
        Heading("How they ended"),
        Table(("status", "exercises"), [(name, str(count)) for name, count in statuses if count]),
        *_failures(summary),
        *_caveats(summary),
        Heading("Where"),
        Table(("part", "version"), _environment(summary)),
    ]


def _rates(summary: Summary) -> list[Row]:
    rows: list[Row] = [("solved", *rate_cells(summary.rate))]
    if summary.asked["track"] != "agentic":
        rows.extend(
            (f"at try {number} or before", *rate_cells(summary.rate_by_try(number)))
            for number in range(1, summary.asked["tries"] + 1)
        )
    if summary.validation:
        rows.append(("solved, of those whose tests hold", *rate_cells(summary.clean_rate)))
    rows.append(("if exit codes were believed", *rate_cells(summary.rate_by_exit_code)))
    return rows


def _costs(summary: Summary) -> list[Row]:
    n = len(summary.counted) or 1
    usage = summary.usage
    amounts = (
        ("tokens read", float(usage.input_tokens), "{:.0f}"),
        ("tokens written", float(usage.output_tokens), "{:.0f}"),
        ("requests", float(usage.calls), "{:.1f}"),
        ("proposals", summary.total(lambda result: result.attempts), "{:.2f}"),
        ("seconds of the model", summary.total(lambda result: result.model_s), "{:.1f}"),
        ("seconds in all", summary.total(lambda result: result.wall_s), "{:.1f}"),
    )
    rows: list[Row] = [
        (name, f"{amount:.0f}", form.format(amount / n)) for name, amount, form in amounts
    ]
    cost = usage.cost_usd
    per = "unknown" if cost is None else f"{cost / n:.5f}"
    rows.append(("dollars", "unknown" if cost is None else f"{cost:.4f}", per))
    return rows


def _failures(summary: Summary) -> list[Block]:
    rows: list[Row] = []
    for result in summary.results:
        if not result.passed:
            repeat = f" #{result.repeat}" if summary.asked["repeat"] > 1 else ""
            reason = " ".join(result.reason.split())
            if len(reason) > _MOST_REASON:
                reason = f"{reason[:_MOST_REASON]}…"
            rows.append((f"{result.exercise}{repeat}", result.status.value, reason))
    if not rows:
        return []
    return [
        Heading("What was not solved, and why"),
        Table(("exercise", "status", "why"), rows),
    ]


def _caveats(summary: Summary) -> list[Block]:
    blocks: list[Block] = []
    if summary.disagreements:
        names = ", ".join(result.exercise for result in summary.disagreements)
        blocks += [
            Heading("Where exit code and verdict disagree"),
            f"The tests ended well and the verifier did not accept it, or the reverse: {names}.",
        ]
    weak: list[Row] = []
    for field, meaning in (
        ("oracle_accepted", "the reference was rejected"),
        ("stub_rejected", "what is given passes already"),
        ("provable", "no tests, so that the exit code decides"),
    ):
        if names := [name for name, answer in summary.validation.items() if not answer[field]]:
            weak.append((meaning, ", ".join(names)))
    if weak:
        blocks += [Heading("Weak spots of the exercises"), Table(("what", "which"), weak)]
    if not summary.validation:
        blocks.append("The tests were not asked about reference and stub before this run.")
    if summary.unsteady:
        blocks.append(f"Solved in some repeats only: {', '.join(summary.unsteady)}.")
    return blocks


def _environment(summary: Summary) -> list[Row]:
    environment = summary.environment
    toolchains: dict[str, str] = environment.get("toolchains", {})
    return [
        ("assay", str(environment.get("assay", ""))),
        ("sandbox", f"{environment.get('backend', '')}, {environment.get('isolation', '')}"),
        ("interpreter", str(environment.get("python", ""))),
        ("machine", f"{environment.get('machine', '')}, Linux {environment.get('kernel', '')}"),
        *((language, text) for language, text in toolchains.items() if text),
    ]


def _charts(summary: Summary) -> list[Block]:
    languages = summary.languages
    rates = [("all", summary.rate)]
    if len(languages) > 1:
        rates.extend((language, rate_of(results)) for language, results in languages.items())
    charts = [rate_bars(rates, "Solved, with 95 % intervals")]
    if summary.curve:
        title = "Solved exercises by number of proposals"
        charts.append(curve(summary.curve, title, "proposals"))
    times: list[tuple[str, float]] = []
    costs: list[tuple[str, float]] = []
    for language, results in languages.items():
        counted = [result for result in results if result.counted]
        n = len(counted) or 1
        times.append((language, sum(result.wall_s for result in counted) / n))
        costs.append((language, sum(result.usage.cost_usd or 0.0 for result in counted) / n))
    charts.append(amount_bars(times, "Time per exercise", "s"))
    if any(cost for _, cost in costs):
        charts.append(amount_bars(costs, "Cost per exercise", "$"))
    return [Chart(svg) for svg in charts]


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison of two runs as Markdown."""
    gained, lost = comparison.gained, comparison.lost
    runs = zip("AB", (comparison.before, comparison.after), comparison.rates, strict=True)
    blocks: list[Block] = [
        Table(
            ("", "model", "track", *_RATE_HEAD),
            [
                (name, summary.asked["model"], summary.asked["track"], *rate_cells(rate))
                for name, summary, rate in runs
            ],
        ),
        (
            f"B solved {len(gained)} that A did not, and A {len(lost)} that B did not "
            f"(both {comparison.both}, neither {comparison.neither}). If the two were equally "
            f"good, a split as uneven as this would have a chance of {comparison.p_value:.3g} "
            "(McNemar, exact)."
        ),
    ]
    if not comparison.same_track:
        blocks.append("The tracks differ: this compares two ways of working, not two models.")
    if comparison.left_out:
        blocks.append(f"{comparison.left_out} results have no counterpart and are left out.")
    flips = [*((name, "B only") for name in gained), *((name, "A only") for name in lost)]
    if flips:
        blocks.append(Table(("flipped", "solved by"), sorted(flips)))
    return to_markdown(blocks)


_INK: Final = "#1f2933"
_FAINT: Final = "#d5dbe1"
_BAR: Final = "#3d7ea6"
_WHISKER: Final = "#12303f"
_ROW_HEIGHT: Final = 26
_LEFT: Final = 150
_WIDTH: Final = 640
_PLOT: Final = _WIDTH - _LEFT - 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a chart."""

    label: str
    value: float
    """From 0 to 1."""
    text: str
    interval: tuple[float, float] | None = None


def rate_bars(rates: Sequence[tuple[str, Rate]], title: str) -> str:
    """Draw rates with their intervals, one below the other."""
    bars = [
        Bar(
            label=label,
            value=rate.value,
            text=f"{100 * rate.value:.0f} %  ({rate.successes}/{rate.trials})",
            interval=rate.interval,
        )
        for label, rate in rates
    ]
    return _bars(bars, title, scale=("0", "50 %", "100 %"))


def amount_bars(amounts: Sequence[tuple[str, float]], title: str, unit: str) -> str:
    """Draw amounts, such as seconds or dollars, one below the other."""
    most = max((amount for _, amount in amounts), default=0.0) or 1.0
    bars = [
        Bar(label=label, value=amount / most, text=f"{amount:.4g} {unit}")
        for label, amount in amounts
    ]
    return _bars(bars, title, scale=("0", f"{most / 2:.3g}", f"{most:.3g} {unit}"))


def _bars(bars: Sequence[Bar], title: str, *, scale: tuple[str, str, str]) -> str:
    height = 34 + _ROW_HEIGHT * len(bars) + 24
    parts: list[str] = []
    bottom = 34 + _ROW_HEIGHT * len(bars)
    for share, text in zip((0.0, 0.5, 1.0), scale, strict=True):
        x = _LEFT + share * _PLOT
        parts.append(f'<line x1="{x:.1f}" y1="30" x2="{x:.1f}" y2="{bottom}" stroke="{_FAINT}"/>')
        parts.append(_text(x, bottom + 16, text, anchor="middle", size=11))
    for number, bar in enumerate(bars):
        y = 34 + _ROW_HEIGHT * number
        middle = y + _ROW_HEIGHT / 2
        parts.append(_text(_LEFT - 8, middle + 4, bar.label, anchor="end"))
        parts.append(
            f'<rect x="{_LEFT}" y="{y + 5}" width="{bar.value * _PLOT:.1f}" '
            f'height="{_ROW_HEIGHT - 10}" rx="2" fill="{_BAR}"/>'
        )
        right = bar.value
        if bar.interval is not None:
            low, high = (_LEFT + end * _PLOT for end in bar.interval)
            parts.append(
                f'<path d="M{low:.1f} {middle - 4} V{middle + 4} M{low:.1f} {middle} H{high:.1f} '
                f'M{high:.1f} {middle - 4} V{middle + 4}" stroke="{_WHISKER}" fill="none"/>'
            )
            right = bar.interval[1]
        parts.append(_text(_LEFT + right * _PLOT + 6, middle + 4, bar.text, size=12))
    return _svg(title, height, parts)


def curve(shares: Sequence[float], title: str, axis: str) -> str:
    """Draw the growth of a rate from step to step."""
    height, top, bottom = 230, 34, 190
    steps = max(len(shares), 1)
    parts: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * (bottom - top)
        parts.append(
            f'<line x1="{_LEFT - 90}" y1="{y:.1f}" x2="{_WIDTH - 30}" y2="{y:.1f}" '
            f'stroke="{_FAINT}"/>'
        )
        parts.append(_text(_LEFT - 96, y + 4, f"{100 * share:.0f} %", anchor="end", size=11))
    left, right = _LEFT - 70, _WIDTH - 50
    width = (right - left) / max(steps - 1, 1)
    points: list[str] = []
    for number, share in enumerate(shares):
        x, y = left + number * width, bottom - share * (bottom - top)
        points.append(f"{x:.1f},{y:.1f}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_BAR}"/>')
        parts.append(_text(x, bottom + 16, str(number + 1), anchor="middle", size=11))
    parts.append(
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{_BAR}" stroke-width="2"/>'
    )
    parts.append(_text((left + right) / 2, height - 6, axis, anchor="middle", size=12))
    return _svg(title, height, parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{_INK}">{escape(text)}</text>'
    )


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = _text(0, 18, title, size=15)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'width="{_WIDTH}" role="img" aria-label="{escape(title, quote=True)}" '
        f'font-family="system-ui, sans-serif">{head}{"".join(parts)}</svg>'
    )


def leaderboard_entry(summary: Summary, command: str) -> dict[str, Any]:
    """Return the entry. Only results of the track `blind` are comparable with the leaderboard."""
    counted = summary.counted
    usage = summary.usage
    n = len(counted) or 1
    with_malformed = sum(result.malformed > 0 for result in counted)
    tries = [one for result in counted for one in result.tries]
    begun = datetime.fromtimestamp((summary.folder / RUN).stat().st_mtime, tz=UTC)
    passed = [summary.rate_by_try(number) for number in (1, 2)]
    return {
        "dirname": summary.folder.resolve().name,
        "test_cases": len(counted),
        "model": summary.asked["model"],
        "edit_format": "whole",
        "track": summary.asked["track"],
        "commit_hash": summary.asked["source"],
        "pass_rate_1": round(100 * passed[0].value, 1),
        "pass_rate_2": round(100 * passed[1].value, 1),
        "pass_num_1": passed[0].successes,
        "pass_num_2": passed[1].successes,
        "percent_cases_well_formed": round(100 * (1 - with_malformed / n), 1),
        "error_outputs": sum(result.retries for result in counted),
        "num_malformed_responses": sum(result.malformed for result in counted),
        "num_with_malformed_responses": with_malformed,
        "user_asks": 0,
        "lazy_comments": sum(result.lazy_comments for result in counted),
        "syntax_errors": sum(one.syntax_errors for one in tries),
        "indentation_errors": sum(one.indentation_errors for one in tries),
        "exhausted_context_windows": summary.count(Status.EXHAUSTED_CONTEXT),
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "test_timeouts": sum(one.timed_out for one in tries),
        "total_tests": summary.tasks,
        "command": command,
        "date": begun.date().isoformat(),
        "versions": f"assay {summary.environment.get('assay', '')}".strip(),
        "seconds_per_case": round(summary.total(lambda result: result.model_s) / n, 1),
        "total_cost": None if usage.cost_usd is None else round(usage.cost_usd, 4),
    }


def as_yaml(entry: dict[str, Any]) -> str:
    """Return the entry in the format of the leaderboard's file: a list of one.

    Raises:
        MissingExtraError: If PyYAML is not installed.
    """
    with require("writing YAML", extra="bench"):
        import yaml
    return yaml.safe_dump([entry], sort_keys=False, allow_unicode=True)


REPORTS: Final = ("report.md", "report.html", "report.yaml")


def write_reports(summary: Summary, folder: Path, command: str) -> tuple[Path, ...]:
    """Write all reports; the results themselves are in `results.jsonl`.

    Raises:
        MissingExtraError: If PyYAML is not installed.
    """
    asked, report = summary.asked, report_of(summary)
    texts = (
        to_markdown(report),
        to_html(report, f"{asked['suite']}: {asked['model']}, {asked['track']}"),
        as_yaml(leaderboard_entry(summary, command)),
    )
    written = tuple(folder / name for name in REPORTS)
    for path, text in zip(written, texts, strict=True):
        write_whole(path, text.encode())
    return written
