"""Reports say what happened, with intervals, and keep apart what does not belong together."""

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.bench.exercise import Language, Track
from assay.bench.reports import (
    REPORTS,
    as_yaml,
    comparison_markdown,
    leaderboard_entry,
    write_reports,
)
from assay.bench.score import telling_line
from assay.bench.store import RESULT, Result, Status, Try
from assay.bench.summary import Summary, compare, read_summary
from assay.contracts.errors import UsageError
from assay.contracts.messages import Usage

LEADERBOARD_KEYS = [
    "dirname", "test_cases", "model", "edit_format", "commit_hash", "pass_rate_1", "pass_rate_2",
    "pass_num_1", "pass_num_2", "percent_cases_well_formed", "error_outputs",
    "num_malformed_responses", "num_with_malformed_responses", "user_asks", "lazy_comments",
    "syntax_errors", "indentation_errors", "exhausted_context_windows", "prompt_tokens",
    "completion_tokens", "test_timeouts", "total_tests", "command", "date", "versions",
    "seconds_per_case", "total_cost",
]  # fmt: skip


def a_result(
    name: str,
    tries: Sequence[bool] = (),
    *,
    status: Status | None = None,
    language: Language = "python",
    **more: Any,
) -> Result:
    found = Status.PASSED if any(tries) else Status.FAILED
    return Result(
        exercise=f"{language}/{name}",
        language=language,
        repeat=1,
        track="blind",
        status=status or found,
        tries=tuple(
            Try(passed=one, by_exit_code=one, proven=one, reason="", tests_s=1.0) for one in tries
        ),
        attempts=len(tries),
        usage=Usage(input_tokens=100, output_tokens=10, calls=1, cost_usd=0.5),
        model_s=2.0,
        wall_s=3.0,
        **more,
    )


def a_run(
    folder: Path, results: Sequence[Result], *, track: Track = "blind", suite: str = "mine"
) -> Summary:
    folder.mkdir()
    asked = {
        "suite": suite,
        "source": "folder mine",
        "exercises": len(results),
        "track": track,
        "model": "local:small",
        "tries": 2,
        "attempts": None,
        "repeat": 1,
        "timeout_s": 180.0,
        "verdict": "proof",
        "memory": "off",
    }
    (folder / "run.json").write_text(json.dumps(asked))
    lines = b"".join(RESULT.dump_json(result) + b"\n" for result in results)
    (folder / "results.jsonl").write_bytes(lines)
    return read_summary(folder)


RESULTS = (
    a_result("first", [True]),
    a_result("second", [False, True]),
    a_result("third", [False, False], malformed=2, reason="wrong | twice"),
    a_result("fourth", status=Status.NOT_RUN, language="go"),
    a_result("fifth", status=Status.INFRASTRUCTURE),
)


def test_rates_are_of_what_was_run(tmp_path: Path) -> None:
    summary = a_run(tmp_path / "run", RESULTS)
    assert (summary.rate.successes, summary.rate.trials) == (2, 3)
    assert [summary.rate_by_try(number).successes for number in (1, 2)] == [1, 2]
    assert summary.curve == [pytest.approx(1 / 3), pytest.approx(2 / 3)]


def test_the_leaderboard_entry_has_the_leaderboards_keys(tmp_path: Path) -> None:
    summary = a_run(tmp_path / "run", RESULTS)
    (entry,) = yaml.safe_load(as_yaml(leaderboard_entry(summary, "assay bench run mine")))
    assert set(entry) == {*LEADERBOARD_KEYS, "track"}
    assert (entry["pass_rate_1"], entry["pass_rate_2"]) == (33.3, 66.7)
    assert entry["num_malformed_responses"] == 2
    assert entry["percent_cases_well_formed"] == 66.7
    assert entry["total_cost"] == 1.5
    assert entry["test_cases"] == 3


class Page(HTMLParser):
    """Collects what a page loads from elsewhere, and which elements are open."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded.extend(value or "" for name, value in attrs if name in {"src", "href"})
        if tag not in {"meta", "line", "rect", "path", "circle", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"meta", "line", "rect", "path", "circle", "polyline"}:
            assert self.open.pop() == tag


def test_all_reports_are_written_and_the_page_needs_nothing_else(tmp_path: Path) -> None:
    summary = a_run(tmp_path / "run", RESULTS)
    written = write_reports(summary, tmp_path, "assay bench run mine")
    assert [path.name for path in written] == list(REPORTS)
    text = (tmp_path / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert (page.loaded, page.open) == ([], [])
    assert text.count("<svg") >= 3
    assert "wrong | twice" in text


def test_what_was_not_run_is_not_told_as_failed(tmp_path: Path) -> None:
    write_reports(a_run(tmp_path / "run", RESULTS), tmp_path, "")
    text = (tmp_path / "report.md").read_text()
    assert "| go | 0/0 |" in text
    assert "| go/fourth | not_run |" in text
    assert "2/3 | 66.7 % |" in text


def test_text_from_outside_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    evil = a_result("evil", [False], reason="<script>alert(1)</script>")
    write_reports(a_run(tmp_path / "run", (evil,)), tmp_path, "")
    assert "<script>" not in (tmp_path / "report.html").read_text()


def test_a_comparison_names_flips_and_their_chance(tmp_path: Path) -> None:
    names = [f"e{number}" for number in range(8)]
    before = a_run(tmp_path / "a", [a_result(name, [name == "e0"]) for name in names])
    after = a_run(tmp_path / "b", [a_result(name, [name != "e0"]) for name in names])
    found = compare(before, after)
    assert found.gained == tuple(f"python/e{number}" for number in range(1, 8))
    assert found.lost == ("python/e0",)
    assert found.p_value == pytest.approx(2 * 9 / 256)
    assert "0.0703" in comparison_markdown(found)


def test_what_only_one_run_has_is_left_out_of_a_comparison(tmp_path: Path) -> None:
    before = a_run(tmp_path / "a", [a_result("one", [True]), a_result("two", [True])])
    after = a_run(tmp_path / "b", [a_result("one", [True]), *RESULTS[3:4]])
    found = compare(before, after)
    assert (found.pairs, found.left_out) == (1, 1)


def test_different_tracks_are_told_apart(tmp_path: Path) -> None:
    before = a_run(tmp_path / "a", [a_result("one", [True])])
    after = a_run(tmp_path / "b", [a_result("one", [True])], track="agentic")
    assert "The tracks differ" in comparison_markdown(compare(before, after))


def test_different_suites_are_not_compared(tmp_path: Path) -> None:
    before = a_run(tmp_path / "a", [a_result("one", [True])])
    after = a_run(tmp_path / "b", [a_result("one", [True])], suite="other")
    with pytest.raises(UsageError, match="different suites"):
        compare(before, after)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("collected 1 item\nE   AssertionError: 4 != 5\n1 failed", "E   AssertionError: 4 != 5"),
        ("Compiling x\nerror[E0425]: cannot find `y`\nwarning: build failed", "error[E0425]: "),
        ("src/main/java/A.java:3: error: ';' expected\n1 error", "src/main/java/A.java:3: error"),
        ("FAIL ./a.spec.js\n  ● adding > small\n", "● adding > small"),
        ("something else\nlast words\n", "last words"),
        ("", "nothing was printed"),
    ],
)
def test_the_line_that_says_most_is_told(output: str, told: str) -> None:
    assert telling_line(output).startswith(told)
