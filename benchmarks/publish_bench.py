"""Generates docs/benchmarks/bench.md from the folders of finished runs.

    python benchmarks/publish_bench.py RUNS [--remark TEXT] [--to docs/benchmarks/bench.md]

RUNS holds `humaneval-single`, `humaneval-agentic`, `python-single` and `python-agentic`, each a
folder that `assay bench run` wrote: single-shot runs of a model, and Assay with the same model.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from assay.bench.reports import rate_cells, table
from assay.bench.store import Result, Status
from assay.bench.summary import Summary, compare, read_summary

ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
TEN = (
    "TEN=$(printf -- '--only python/%s ' beer-song bottle-song dominoes dot-dsl proverb "
    "rest-api robot-name sgf-parsing tree-building wordy)"
)
SUITES = {
    "humaneval": ("HumanEval", "humaneval --dataset HumanEval.jsonl.gz", ""),
    "python": ("Polyglot, ten Python exercises", "polyglot --dataset CLONE $TEN", TEN),
}
"""By the prefix of the folder names: title, track, and prerequisites."""
NO_COMMIT = "a folder that is not a git clone, so its commit is unknown"
HEAD = """\
# The embedded model alone, and with Assay

This page compares two tracks with the same model. In the track `blind` (one try, temperature 0),
the model replies once and sees only docs and stub. In the track `agentic`, Assay works with the
model and sees the tests. `blind` measures a single reply. `agentic` measures the model when Assay
runs and verifies its attempts.

The same verifier judges both, in fresh sandboxes without network access. Memory was off, so no
exercise could help another. Suite validation ran separately. For every exercise, the tests accepted
the reference and rejected the stub. Intervals are 95 % Wilson intervals. The p-value is from
McNemar's exact test.

`python benchmarks/publish_bench.py RUNS` generates this page from the folders of the runs.
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
    run = f"assay bench run {words} --no-validate --model local"
    lines = (
        before,
        f"assay bench validate {words}",
        f"{run} --attempts 1",
        f"{run} --track agentic --attempts {attempts}",
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
        ("single reply", *rate_cells(single.rate), *effort(single)),
        ("Assay", *rate_cells(agentic.rate), *effort(agentic)),
    ]
    flips = (
        f"Assay solved {len(found.gained)} exercises that the single reply did not solve. "
        f"The single reply solved {len(found.lost)} that Assay did not solve; "
        f"p = {found.p_value:.3g}."
    )
    head = ("", "solved", "rate", "95 % interval", "output tokens", "seconds per exercise")
    return "\n\n".join(
        (
            f"## {title}",
            f"{single.tasks} exercises, {source_of(single)}; model {single.asked['model']}."
            + incomplete(single, agentic),
            commands,
            table(head, rows),
            flips,
            "### Failures with Assay",
            failures(agentic),
            "### Failures of the single reply",
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
    """Return how far the run came, and the error in its last submission."""
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
        f"## Environment\n\nAssay {environment.get('assay')}, sandbox {environment.get('backend')} "
        f"({environment.get('isolation')}), {environment.get('python')}, "
        f"{environment.get('toolchains', {}).get('python', '')}, {environment.get('machine')}, "
        f"two processors shared with other work. That affects the seconds, not the rates.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
