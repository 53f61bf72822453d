"""Markdown report of a run: tables, failures with reasons, and caveats."""

from collections.abc import Iterable, Sequence
from typing import Final

from assay.bench.result import Result, Status
from assay.bench.statistics import Rate
from assay.bench.summary import Summary, rate_of

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
