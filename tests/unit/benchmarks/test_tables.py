"""Tables and documents of the benchmark say what was measured, and of whom."""

import io
import json
from dataclasses import replace

from rich.console import Console

from benchmarks.comparison.measurements import (
    DO_NOTHING,
    PANDAS,
    Latency,
    Measurements,
    Memory,
    spread_of,
)
from benchmarks.comparison.report import notes_on, to_json, to_markdown
from benchmarks.comparison.tables import Table, build_tables, milliseconds
from benchmarks.comparison.targets import check_targets

MEASURED = Measurements(
    machine={"kernel": "Linux 6.1"},
    rounds=3,
    pause_ms=50,
    pool_size=3,
    latencies=[
        Latency(
            runner="native-pool",
            program=PANDAS,
            scope="whole",
            spread=spread_of([0.0031, 0.004, 0.0052]),
        ),
        Latency(runner="native-pool", program=PANDAS, scope="run", spread=spread_of([0.0025])),
        Latency(runner="bare", program=DO_NOTHING, scope="whole", spread=spread_of([0.017])),
        Latency(runner="bare", program=PANDAS, scope="whole", spread=spread_of([0.4])),
        Latency(runner="docker-run", program=PANDAS, scope="whole", spread=spread_of([0.8])),
        Latency(runner="bwrap", program=PANDAS, scope="whole", spread=None, errors=3),
    ],
    memory=[
        Memory(
            runner="native-pool", copies=8, private_mb=3.2, proportional_mb=9.2, with_parents_mb=12
        )
    ],
    skipped={"llm-sandbox": "not installed"},
    failures={"bwrap": "No\npermission"},
)


def test_times_are_shown_with_as_many_digits_as_they_are_worth() -> None:
    assert milliseconds(spread_of([0.00312, 0.0999, 0.1004])) == "3.1 / 99.9 / 100"
    assert milliseconds(None) == "failed"


def latency_rows() -> dict[tuple[str, str], list[str]]:
    table = build_tables(MEASURED, ())[0]
    return {(row[0], row[1]): list(row[2:]) for row in table.rows}


def test_a_row_says_what_is_timed_and_compares_with_bare_and_docker() -> None:
    rows = latency_rows()

    assert rows["Assay native, pool", "open + run + close, fresh"] == [
        *("-", "-", "-"),
        *("3.1 / 4.0 / 5.2", "100 x", "200 x"),
        "3",
    ]


def test_a_factor_far_below_one_is_not_shown_as_zero() -> None:
    slow = Latency(runner="docker-exec", program=PANDAS, scope="whole", spread=spread_of([130.0]))
    measured = replace(MEASURED, latencies=[*MEASURED.latencies, slow])

    rows = {row[0]: row for row in build_tables(measured, ())[0].rows}

    assert rows["docker exec"][6:8] == ["0.0031 x", "0.0062 x"]


def test_the_run_alone_has_a_row_of_its_own() -> None:
    row = latency_rows()["Assay native, pool", "run alone, sandbox open"]

    assert row[3] == "2.5 / 2.5 / 2.5"


def test_a_runner_that_never_succeeded_is_shown_as_failed() -> None:
    row = latency_rows()["bubblewrap", "start to exit, fresh"]

    assert row[3:] == ["failed", "-", "-", "0, 3 failed"]


def test_a_runner_that_was_not_measured_has_no_row() -> None:
    assert "docker exec" not in {label for label, _ in latency_rows()}


def test_a_table_without_rows_is_left_out() -> None:
    titles = [table.title for table in build_tables(MEASURED, ())]

    assert titles == ["One execution at a time", "Memory per idle sandbox"]


def test_markdown_aligns_numbers_and_words() -> None:
    table = Table(title="T", note="N.", columns=("a", "b"), rows=[("x", "1")])

    assert table.to_markdown() == "## T\n\nN.\n\n| a | b |\n| --- | ---: |\n| x | 1 |\n"


def test_the_terminal_shows_the_same_cells() -> None:
    console = Console(width=200, file=io.StringIO())
    table = build_tables(MEASURED, check_targets(MEASURED))[-1]

    with console.capture() as captured:
        console.print(table.to_terminal())

    assert table.title in captured.get()
    assert all(cell in captured.get() for row in table.rows for cell in row)


def test_the_document_names_machine_picture_and_what_is_missing() -> None:
    text = to_markdown(MEASURED, build_tables(MEASURED, check_targets(MEASURED)), "sandbox.png")

    assert "](sandbox.png)" in text
    assert "- kernel: Linux 6.1\n" in text
    assert "- llm-sandbox, session was left out: not installed\n" in text
    assert "- bubblewrap failed at least once, first with: No permission\n" in text


def test_nothing_is_noted_when_all_went_well() -> None:
    assert notes_on(Measurements(machine={}, rounds=1, pause_ms=50, pool_size=3)) == []


def test_the_results_survive_json() -> None:
    values = to_json(MEASURED, check_targets(MEASURED))

    again = json.loads(json.dumps(values))

    assert again["latencies"][0]["spread"]["count"] == 3
    assert again["targets"][0]["met"] is True
