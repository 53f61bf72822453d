"""Reports of a run, written next to its results.

Markdown has tables, failures with reasons, and caveats. HTML is one self-contained page with SVG
charts, drawn without a library. The third format is the one of the public leaderboard.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from assay.bench.store import RUN, Result, Status
from assay.bench.summary import Rate, Summary, rate_of
from assay.contracts.errors import require

_MOST_REASON: Final = 140
_MEANINGS: Final = {
    "blind": "docs and stubs only, tests hidden, their whole output after a failed try",
    "blind+exec": "tests hidden; Assay runs its own code and checks, and reads their output",
    "agentic": "Assay, with the tests in sight, until they are passed or the budget is out",
}


def rate_cells(rate: Rate) -> tuple[str, str, str]:
    """Return the cells of a rate: solved, share, interval."""
    low, high = rate.interval
    return (
        f"{rate.successes}/{rate.trials}",
        f"{100 * rate.value:.1f} %",
        f"{100 * low:.1f} to {100 * high:.1f} %",
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; escapes characters that would end a cell."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines.extend(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def as_markdown(summary: Summary) -> str:
    """Return the report."""
    asked = summary.asked
    parts = [
        f"# {asked['suite']}: {asked['model']}, track {asked['track']}",
        _opening(summary),
        "## Rates",
        table(("what", "solved", "rate", "95 % interval"), _rates(summary)),
        "## By language",
        table(
            ("language", "solved", "rate", "95 % interval", "not run", "seconds", "dollars"),
            _languages(summary),
        ),
        "## What it took",
        table(("what", "in all", "per exercise"), _costs(summary)),
        *_failures(summary),
        *_alarms(summary),
        "## Where",
        table(("part", "version"), _places(summary)),
    ]
    return "\n\n".join(parts) + "\n"


def _opening(summary: Summary) -> str:
    asked = summary.asked
    state = "" if summary.complete else f" **Not complete: {len(summary.results)} so far.**"
    tries = f"{asked['tries']} tries" if asked["track"] != "agentic" else ""
    attempts = f"{asked['attempts']} attempts at most" if asked["attempts"] else ""
    limits = ", ".join(part for part in (tries, attempts) if part)
    return (
        f"{summary.tasks} exercises ({asked['source']}), {limits}. Track {asked['track']}: "
        f"{_MEANINGS[asked['track']]}. Verdict by {asked['verdict']}; memory {asked['memory']}; "
        f"{asked['timeout_s']:.0f} s for tests.{state}\n\n"
        "Rates of different tracks say different things and do not belong into one column."
    )


def _rates(summary: Summary) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("solved", *rate_cells(summary.rate))]
    if summary.asked["track"] != "agentic":
        rows.extend(
            (f"at try {number} or before", *rate_cells(summary.rate_by_try(number)))
            for number in range(1, summary.asked["tries"] + 1)
        )
    if summary.gate:
        rows.append(("solved, of those whose tests hold", *rate_cells(summary.clean_rate)))
    rows.append(("if exit codes were believed", *rate_cells(summary.rate_by_exit_code)))
    return rows


def _languages(summary: Summary) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for language, results in summary.languages.items():
        not_run = sum(not result.counted for result in results)
        seconds = sum(result.wall_s for result in results)
        rows.append(
            (
                language,
                *rate_cells(rate_of(results)),
                str(not_run),
                f"{seconds:.0f}",
                _dollars(results),
            )
        )
    return rows


def _dollars(results: Iterable[Result]) -> str:
    costs = [result.usage.cost_usd for result in results]
    known = [cost for cost in costs if cost is not None]
    return f"{sum(known):.4f}" if len(known) == len(costs) else "unknown"


def _costs(summary: Summary) -> list[Sequence[str]]:
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
    rows: list[Sequence[str]] = [
        (name, f"{amount:.0f}", form.format(amount / n)) for name, amount, form in amounts
    ]
    cost = usage.cost_usd
    per = "unknown" if cost is None else f"{cost / n:.5f}"
    rows.append(("dollars", "unknown" if cost is None else f"{cost:.4f}", per))
    return rows


def _failures(summary: Summary) -> list[str]:
    counts = [(status, summary.count(status)) for status in Status if summary.count(status)]
    parts = ["## How they ended", table(("status", "exercises"), _counts(counts))]
    failed = [result for result in summary.results if not result.passed]
    if failed:
        parts.append("## What was not solved, and why")
        rows = ((_name(summary, result), result.status.value, _why(result)) for result in failed)
        parts.append(table(("exercise", "status", "why"), rows))
    return parts


def _name(summary: Summary, result: Result) -> str:
    return f"{result.exercise} #{result.repeat}" if summary.asked["repeat"] > 1 else result.exercise


def _counts(counts: Iterable[tuple[Status, int]]) -> list[Sequence[str]]:
    return [(status.value, str(number)) for status, number in counts]


def _why(result: Result) -> str:
    text = " ".join((result.reason or "").split())
    return f"{text[:_MOST_REASON]}…" if len(text) > _MOST_REASON else text


def _alarms(summary: Summary) -> list[str]:
    parts: list[str] = []
    if summary.disagreements:
        names = ", ".join(result.exercise for result in summary.disagreements)
        parts.append(
            "## Where exit code and verdict disagree\n\n"
            f"The tests ended well and the verifier did not accept it, or the reverse: {names}."
        )
    doubtful = {
        "the reference was rejected": [
            name for name, answer in summary.gate.items() if not answer["oracle_accepted"]
        ],
        "what is given passes already": [
            name for name, answer in summary.gate.items() if not answer["stub_rejected"]
        ],
        "no tests, so that the exit code decides": [
            name for name, answer in summary.gate.items() if not answer["provable"]
        ],
    }
    if any(doubtful.values()):
        rows = [(what, ", ".join(names)) for what, names in doubtful.items() if names]
        parts.append("## Weak spots of the exercises\n\n" + table(("what", "which"), rows))
    if not summary.gate:
        parts.append("The tests were not asked about reference and stub before this run.")
    if summary.unsteady:
        parts.append(f"Solved in some repeats only: {', '.join(summary.unsteady)}.")
    return parts


def _places(summary: Summary) -> list[Sequence[str]]:
    environment = summary.environment
    rows: list[Sequence[str]] = [
        ("assay", str(environment.get("assay", ""))),
        ("sandbox", f"{environment.get('backend', '')}, {environment.get('isolation', '')}"),
        ("interpreter", str(environment.get("python", ""))),
        ("machine", f"{environment.get('machine', '')}, Linux {environment.get('kernel', '')}"),
    ]
    toolchains: dict[str, str] = environment.get("toolchains", {})
    rows.extend((language, said) for language, said in toolchains.items() if said)
    return rows


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
    low: float | None = None
    high: float | None = None
    text: str = ""


def rate_bars(rates: Sequence[tuple[str, Rate]], title: str) -> str:
    """Draw rates with their intervals, one below the other."""
    bars: list[Bar] = []
    for label, rate in rates:
        low, high = rate.interval
        text = f"{100 * rate.value:.0f} %  ({rate.successes}/{rate.trials})"
        bars.append(Bar(label=label, value=rate.value, low=low, high=high, text=text))
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
    for place, bar in enumerate(bars):
        y = 34 + _ROW_HEIGHT * place
        middle = y + _ROW_HEIGHT / 2
        parts.append(_text(_LEFT - 8, middle + 4, bar.label, anchor="end"))
        parts.append(
            f'<rect x="{_LEFT}" y="{y + 5}" width="{bar.value * _PLOT:.1f}" '
            f'height="{_ROW_HEIGHT - 10}" rx="2" fill="{_BAR}"/>'
        )
        right = bar.value
        if bar.low is not None and bar.high is not None:
            low, high = _LEFT + bar.low * _PLOT, _LEFT + bar.high * _PLOT
            parts.append(
                f'<path d="M{low:.1f} {middle - 4} V{middle + 4} M{low:.1f} {middle} H{high:.1f} '
                f'M{high:.1f} {middle - 4} V{middle + 4}" stroke="{_WHISKER}" fill="none"/>'
            )
            right = bar.high
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
    for place, share in enumerate(shares):
        x, y = left + place * width, bottom - share * (bottom - top)
        points.append(f"{x:.1f},{y:.1f}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_BAR}"/>')
        parts.append(_text(x, bottom + 16, str(place + 1), anchor="middle", size=11))
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
_COLUMN_BREAK: Final = re.compile(r"(?<!\\)\|")
_BOLD: Final = re.compile(r"\*\*(.+?)\*\*")


def as_html(summary: Summary) -> str:
    """Return the page."""
    title = f"{summary.asked['suite']}: {summary.asked['model']}, {summary.asked['track']}"
    head, _, rest = as_markdown(summary).partition("\n\n## Rates")
    body = "\n".join((_blocks(head), *_pictures(summary), _blocks(f"## Rates{rest}")))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _pictures(summary: Summary) -> list[str]:
    rates = [("all", summary.rate)]
    languages = summary.languages
    if len(languages) > 1:
        rates.extend((language, rate_of(results)) for language, results in languages.items())
    pictures = [rate_bars(rates, "Solved, with 95 % intervals")]
    if summary.curve:
        pictures.append(
            curve(summary.curve, "Solved exercises by number of proposals", "proposals")
        )
    times: list[tuple[str, float]] = []
    costs: list[tuple[str, float]] = []
    for language, results in languages.items():
        counted = [result for result in results if result.counted]
        n = len(counted) or 1
        times.append((language, sum(result.wall_s for result in counted) / n))
        costs.append((language, sum(result.usage.cost_usd or 0.0 for result in counted) / n))
    pictures.append(amount_bars(times, "Time per exercise", "s"))
    if any(cost for _, cost in costs):
        pictures.append(amount_bars(costs, "Cost per exercise", "$"))
    return pictures


def _blocks(markdown: str) -> str:
    """Convert the few Markdown forms of reports to HTML; all other text stays text."""
    return "\n".join(_block(block) for block in markdown.strip().split("\n\n") if block.strip())


def _block(block: str) -> str:
    lines = block.split("\n")
    if lines[0].startswith("#") and len(lines) == 1:
        level = len(lines[0]) - len(lines[0].lstrip("#"))
        return f"<h{level}>{_inline(lines[0].lstrip('# '))}</h{level}>"
    if lines[0].startswith("|"):
        head, _, *rows = lines
        body = "".join(f"<tr>{_cells(row, 'td')}</tr>" for row in rows)
        return f"<table><thead><tr>{_cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _cells(line: str, tag: str) -> str:
    cells = _COLUMN_BREAK.split(line)[1:-1]
    return "".join(f"<{tag}>{_inline(cell.strip())}</{tag}>" for cell in cells)


def _inline(text: str) -> str:
    return _BOLD.sub(r"<strong>\1</strong>", escape(text.replace("\\|", "|")))


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
    texts = (
        as_markdown(summary),
        as_html(summary),
        as_yaml(leaderboard_entry(summary, command)),
    )
    written: list[Path] = []
    for name, text in zip(REPORTS, texts, strict=True):
        path = folder / name
        partial = path.with_suffix(f"{path.suffix}.partial")
        partial.write_text(text, "utf-8")
        partial.replace(path)
        written.append(path)
    return tuple(written)
