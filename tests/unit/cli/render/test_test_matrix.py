from io import StringIO

import pytest
from rich.console import Console

from assay.cli.render.test_matrix import MatrixView
from assay.contracts.verdict import TestMatrix, TestMatrixRow, TestStatus
from tests.support.runs import a_lattice


def drawn(
    test_matrix: TestMatrix,
    *,
    width: int = 60,
    max_rows: int = 16,
    colour: bool = False,
    encoding: str = "utf-8",
) -> list[str]:
    class File(StringIO):
        pass

    File.encoding = encoding  # pyright: ignore[reportAttributeAccessIssue] - what a stream has
    output = File()
    console = Console(
        file=output,
        width=width,
        force_terminal=True,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    console.print(MatrixView(test_matrix=test_matrix, max_rows=max_rows))
    return output.getvalue().splitlines()


def wide(tests: int, attempts: int) -> TestMatrix:
    """Of `tests` tests, each attempt passes one more."""
    return TestMatrix(
        rows=tuple(
            TestMatrixRow(
                attempt=attempt,
                statuses={
                    f"test_{test}": TestStatus.PASSED if test < attempt else TestStatus.FAILED
                    for test in range(tests)
                },
            )
            for attempt in range(1, attempts + 1)
        )
    )


def test_without_colour_every_ending_has_its_symbol() -> None:
    assert drawn(a_lattice("pfes", "ppfpp")) == [
        "  1 2 tests/test_slugify.py::",
        "✓ ✓ ✓ test_lowers_letters",
        "✓ ✗ ✓ test_joins_words_with_a_dash",
        "✗ ! ✗ test_drops_punctuation",
        "✓ – ✓ test_folds_accents",  # noqa: RUF001 - the symbol of what was skipped
        "✓ · ✓ test_keeps_numbers",
        "4 of 5 tests pass, 1 fail",
    ]


def test_with_colour_squares_differ_by_it() -> None:
    lines = drawn(a_lattice("pfe.", "pppp"), colour=True)

    assert "\x1b[32m■\x1b[0m" in lines[1]
    assert "\x1b[31m■\x1b[0m" in lines[2]
    assert "\x1b[35m■\x1b[0m" in lines[3]
    assert "■" not in lines[4].partition("\x1b[32m■")[0]


def test_a_terminal_without_unicode_gets_letters() -> None:
    lines = drawn(a_lattice("pfe", "ppfp"), encoding="ascii")

    assert [line[:6] for line in lines[1:5]] == ["+ + + ", "+ x + ", "x ! x ", "+ . + "]


def test_many_tests_are_put_together_by_what_became_of_them() -> None:
    lines = drawn(wide(tests=100, attempts=3), max_rows=10)

    assert lines == [
        "  1 2 3 attempt",
        "✗ ✗ ✗ ✗ 97 tests: test_3, test_4, test_5, …",
        "✓ ✗ ✓ ✓ test_1",
        "✓ ✗ ✗ ✓ test_2",
        "✓ ✓ ✓ ✓ test_0",
        "3 of 100 tests pass, 97 fail",
    ]


def test_what_does_not_pass_comes_before_what_there_is_no_room_for() -> None:
    lines = drawn(wide(tests=100, attempts=30), max_rows=6, width=120)

    assert len(lines) == 6
    assert "70 tests" in lines[1]
    assert lines[-2] == "and 28 tests with other results"


def test_of_many_attempts_the_newest_are_shown() -> None:
    lines = drawn(wide(tests=3, attempts=30), width=30)

    assert lines[0].startswith("… 26 27 28 29 30 ")


def test_a_regression_is_said() -> None:
    assert drawn(a_lattice("ppp", "pff"))[-1] == (
        "1 of 3 tests pass, 2 fail; the best was 3, in attempt 1"
    )


def test_no_attempt_is_no_picture() -> None:
    assert drawn(TestMatrix()) == []


@pytest.mark.parametrize("width", [1, 5, 20, 40])
@pytest.mark.parametrize("max_rows", [0, 1, 3, 5])
def test_it_stays_within_its_frame(width: int, max_rows: int) -> None:
    lines = drawn(wide(tests=40, attempts=12), width=width, max_rows=max_rows)

    assert max(map(len, lines)) <= width
    assert len(lines) <= max(max_rows, 4)
