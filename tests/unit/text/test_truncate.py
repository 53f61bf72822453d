import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.text.formatting import (
    cut_middle,
    fold_repeated_lines,
    normalise_addresses,
    normalise_temporary_paths,
    normalise_timings,
    strip_control_codes,
    trim,
)

PRINTED = st.text(
    alphabet=st.one_of(st.sampled_from("ab\n\r\x1b[]m0;31KJ =.…\t\x07"), st.characters()),
    max_size=400,
)


@given(PRINTED, st.integers(min_value=0, max_value=500))
def test_a_trimmed_text_is_never_longer_than_asked(text: str, room: int) -> None:
    assert len(trim(text, max_chars=room)) <= room


@given(PRINTED)
def test_no_control_code_is_left(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", strip_control_codes(text))


@given(PRINTED)
def test_stripping_twice_changes_nothing(text: str) -> None:
    once = strip_control_codes(text)

    assert strip_control_codes(once) == once


@given(st.text(alphabet="ab \n", max_size=200))
def test_plain_text_of_different_lines_stays_as_it_is(text: str) -> None:
    numbered = "\n".join(f"{number} {line}" for number, line in enumerate(text.split("\n")))

    assert fold_repeated_lines(numbered) == numbered
    assert strip_control_codes(numbered) == numbered


@given(st.lists(st.sampled_from(["one", "two", "three", ""]), max_size=60))
def test_folding_keeps_every_line_that_was_there(lines: list[str]) -> None:
    folded = fold_repeated_lines("\n".join(lines)).split("\n")

    assert set(lines) - {""} <= set(folded)


@given(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=60))
def test_a_folded_text_can_be_counted_back(lines: list[str]) -> None:
    unfolded: list[str] = []
    for line in fold_repeated_lines("\n".join(lines)).split("\n"):
        note = re.fullmatch(r"\[the (?:line|(\d+) lines) above: (\d+) times more\]", line)
        if note:
            size = int(note[1] or 1)
            unfolded.extend(unfolded[-size:] * int(note[2]))
        else:
            unfolded.append(line)

    assert unfolded == lines


@given(st.text(max_size=300), st.integers(min_value=200, max_value=260))
def test_a_cut_keeps_the_beginning_and_the_end(middle: str, room: int) -> None:
    text = f"first\n{middle}{'x' * 300}\nlast"

    cut = cut_middle(text, max_chars=room)

    assert cut.startswith("first")
    assert cut.endswith("last")
    assert "characters left out" in cut


@pytest.mark.parametrize(
    "step", [normalise_timings, normalise_temporary_paths, normalise_addresses]
)
@given(text=PRINTED)
def test_normalising_twice_changes_nothing(step: object, text: str) -> None:
    assert callable(step)
    once = step(text)

    assert step(once) == once


def test_colours_and_links_are_removed() -> None:
    text = "\x1b[1;31mFAILED\x1b[0m \x1b]8;;file:///a\x1b\\a.py\x1b]8;;\x1b\\ \x9b32mok"

    assert strip_control_codes(text) == "FAILED a.py ok"


def test_of_a_progress_bar_the_last_state_is_kept() -> None:
    assert strip_control_codes("10%\r50%\r100%\nnext\r\nend\r") == "100%\nnext\nend"


def test_frames_of_a_mutual_recursion_are_folded() -> None:
    text = "begin\n" + "even\nodd\n" * 50 + "end"

    assert fold_repeated_lines(text) == (
        "begin\neven\nodd\n[the 2 lines above: 49 times more]\nend"
    )


@pytest.mark.parametrize(
    ("line", "stable"),
    [
        ("==== 1 failed, 2 passed in 0.12s ====", "==== 1 failed, 2 passed in …s ===="),
        ("Ran 3 tests in 0.001s", "Ran 3 tests in …s"),
        ("--- FAIL: TestTable (0.02s)", "--- FAIL: TestTable (…s)"),
        ("ok  \texample.com/m\t0.003s", "ok  \texample.com/m\t…s"),
        ("# duration_ms 60.1", "# duration_ms …"),
        ("  ✓ adds (12 ms)", "  ✓ adds (… ms)"),
        ("Time:        1.289 s", "Time:        … s"),
        ("1/1 Test #1: unit ....   Passed    0.02 sec", "1/1 Test #1: unit ....   Passed    … sec"),
        (
            "test result: ok. 1 passed; finished in 0.38s",
            "test result: ok. 1 passed; finished in …s",
        ),
    ],
)
def test_timings_of_runners_are_made_equal(line: str, stable: str) -> None:
    assert normalise_timings(line) == stable


@pytest.mark.parametrize(
    "line",
    ["assert '1.5s' == '2s'", "expected 0.12s, got 3.4s", "E  assert 3 == 4", "sleeps in 2s steps"],
)
def test_numbers_in_assertions_are_left_alone(line: str) -> None:
    assert normalise_timings(line) == line


def test_temporary_folders_and_addresses_have_one_name() -> None:
    assert normalise_temporary_paths("/tmp/pytest-of-user/pytest-3/test_a0/x") == "/tmp/…/test_a0/x"
    assert normalise_temporary_paths("/tmp/tmpab12cd/x.txt") == "/tmp/…/x.txt"
    assert normalise_addresses("<A object at 0x7f3a12bc4d50>") == "<A object at 0x…>"
    assert normalise_addresses("assert 0x12 == 0xff") == "assert 0x12 == 0xff"


def test_a_megabyte_of_one_letter_is_trimmed() -> None:
    trimmed = trim("x" * 1_000_000)

    assert len(trimmed) <= 12_000
    assert "left out" in trimmed


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("1%\r2%\r3%\ndone", "3%\ndone"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("half\r", "half"),
    ],
)
def test_text_reads_as_on_a_terminal(printed: str, shown: str) -> None:
    assert strip_control_codes(printed) == shown
