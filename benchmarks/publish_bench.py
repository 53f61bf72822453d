"""Makes docs/benchmarks/bench.md from the folders of finished runs.

    python benchmarks/publish_bench.py RUNS [--remark TEXT] [--to docs/benchmarks/bench.md]

RUNS holds `humaneval-single`, `humaneval-agentic`, `python-single` and `python-agentic`, each a
folder that `assay bench run` wrote: the model asked once, and Assay with the same model.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from assay.bench.comparing import compare
from assay.bench.markdown_report import rate_cells, table
from assay.bench.result import Result, Status
from assay.bench.summary import Summary, read_summary

ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
TEN = (
    "TEN=$(printf -- '--only python/%s ' beer-song bottle-song dominoes dot-dsl proverb "
    "rest-api robot-name sgf-parsing tree-building wordy)"
)
SUITES = {
    "humaneval": ("HumanEval", "humaneval --dataset HumanEval.jsonl.gz", ""),
    "python": ("Polyglot, ten Python exercises", "polyglot --dataset CLONE $TEN", TEN),
}
"""By the beginning of their folders' names: title, what is run, what has to be set before."""
NO_COMMIT = "a folder that is no git clone, so its commit is not known"
HEAD = """\
# What the embedded model solves alone, and with Assay

The same model, asked once with docs and stub only (track `blind`, one try, temperature 0), and at
work in Assay with the tests in sight (track `agentic`). The two are different tracks: the first is
what a single reply is worth, the second what the same model comes to when its proposals are run and
judged. Both are judged by the same verifier in fresh sandboxes without network; memory was off, so
that no exercise could help another. The gate was asked by itself: it accepted the reference and
rejected the stub of every exercise. Intervals are Wilson's, 95 %; the p-value is McNemar's, exact.

This page is made by `python benchmarks/publish_bench.py RUNS` from the runs' own folders.
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--to", type=Path, default=Path("docs/benchmarks/bench.md"))
    parser.add_argument("--remark", default="", help="what else a reader has to know of the runs")
    arguments = parser.parse_args()
    parts = [HEAD]
    for name, (title, words, before) in SUITES.items():
        single = read_summary(arguments.runs / f"{name}-single")
        agentic = read_summary(arguments.runs / f"{name}-agentic")
        parts.append(section(title, commands(words, before, agentic), single, agentic))
    parts.append(where(single))
    parts.append(arguments.remark)
    arguments.to.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", "utf-8")
    print(arguments.to)
    return 0


def commands(words: str, before: str, agentic: Summary) -> str:
    attempts = agentic.asked["attempts"]
    lines = (
        before,
        f"assay bench gate {words}",
        f"assay bench run {words} --no-gate --model local --tries 1",
        f"assay bench run {words} --no-gate --model local --track agentic --attempts {attempts}",
    )
    return "\n".join(("```console", *(f"$ {line}" for line in lines if line), "```"))


def section(title: str, commands: str, single: Summary, agentic: Summary) -> str:
    for summary in (single, agentic):
        if not summary.complete:
            print(
                f"{summary.folder}: only {len(summary.results)} of {summary.tasks}", file=sys.stderr
            )
    found = compare(single, agentic)
    rows = [
        ("asked once", *rate_cells(single.rate), *effort(single)),
        ("Assay", *rate_cells(agentic.rate), *effort(agentic)),
    ]
    flips = (
        f"Assay solved {len(found.gained)} that one reply did not, and one reply solved "
        f"{len(found.lost)} that Assay did not; p = {found.p_value:.3g}."
    )
    head = ("", "solved", "rate", "95 % interval", "tokens written", "seconds each")
    return "\n\n".join(
        (
            f"## {title}",
            f"{single.tasks} exercises, {source_of(single)}; model {single.asked['model']}."
            + incomplete(single, agentic),
            commands,
            table(head, rows),
            flips,
            "### What Assay did not solve, and why",
            failures(agentic),
            "### What one reply did not solve, and why",
            failures(single),
        )
    )


def source_of(summary: Summary) -> str:
    known: str = summary.asked["source"]
    return NO_COMMIT if known == "a folder without a commit" else known


def incomplete(*summaries: Summary) -> str:
    if all(summary.complete for summary in summaries):
        return ""
    done = " and ".join(f"{len(one.results)} of {one.tasks}" for one in summaries)
    return f" **Not complete: {done} are done.**"


def effort(summary: Summary) -> tuple[str, str]:
    n = len(summary.counted) or 1
    seconds = summary.total(lambda result: result.wall_s) / n
    return f"{summary.usage.output_tokens}", f"{seconds:.0f}"


def failures(summary: Summary) -> str:
    counts = ", ".join(
        f"{summary.count(status)} {status.value}"
        for status in Status
        if summary.count(status) and status is not Status.PASSED
    )
    failed = [result for result in summary.results if not result.passed]
    if not failed:
        return "Nothing."
    kinds = Counter(kind_of(result) for result in failed)
    told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    rows = [(result.exercise, result.status.value, why(result)) for result in failed]
    return f"{counts}. {told}.\n\n" + table(("exercise", "status", "why"), rows)


def why(result: Result) -> str:
    """Return how far it came, and what was wrong with what was handed in last."""
    last = result.tries[-1].reason if result.tries else ""
    said = result.reason if not last or last in result.reason else f"{result.reason}; {last}"
    return " ".join(said.replace("the tests failed: E ", "").split())[:150]


def kind_of(result: Result) -> str:
    if result.tries and result.tries[-1].timed_out:
        return "too slow"
    last = result.tries[-1].reason if result.tries else result.reason
    if found := ERROR.search(last):
        return "wrong answer" if found[0] == "AssertionError" else found[0]
    return "wrong answer" if "assert" in last else "other"


def where(summary: Summary) -> str:
    environment = summary.environment
    return (
        f"## Where\n\nAssay {environment.get('assay')}, sandbox {environment.get('backend')} "
        f"({environment.get('isolation')}), {environment.get('python')}, "
        f"{environment.get('toolchains', {}).get('python', '')}, {environment.get('machine')}, "
        f"two processors shared with other work, which the seconds show and the rates do not.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
