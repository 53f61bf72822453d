import subprocess  # noqa: TID251 - another process, to compare with
import sys

from hypothesis import given
from hypothesis import strategies as st

from assay.memory.embedding import DIMENSIONS, HashedEmbedder, hashed, pack, similarity

GOAL = "Write durations.py with parse_duration(text) that turns '1h30m' into seconds"


async def test_every_text_becomes_a_vector_of_the_same_length() -> None:
    packed = await HashedEmbedder().embed([GOAL, "", "\ud800", "x" * 100_000])

    assert [len(vector) for vector in packed] == [DIMENSIONS] * 4


def test_other_words_for_the_same_are_closer_than_something_else() -> None:
    other = "parse_duration should read texts like 2h5m as seconds"
    stranger = "Draw the revenue of each month as a bar chart"

    assert similarity(GOAL, GOAL) > 0.999
    assert similarity(GOAL, other) > 0.3 > similarity(GOAL, stranger)


def test_names_count_in_every_way_of_writing_them() -> None:
    assert similarity("monthlyRevenue", "monthly_revenue") > 0.6
    assert similarity("durations", "duration") > 0.4


def test_a_vector_is_the_same_in_every_process() -> None:
    program = (
        "import sys; from assay.memory.embedding import hashed, pack;"
        "print(pack(hashed(sys.argv[1])).hex())"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program, GOAL], capture_output=True, text=True, check=True
    )

    assert elsewhere.stdout.strip() == pack(hashed(GOAL)).hex()


@given(st.text(), st.text())
def test_likeness_is_between_one_and_minus_one_and_has_no_sides(one: str, other: str) -> None:
    assert -1.0001 <= similarity(one, other) <= 1.0001
    assert similarity(one, other) == similarity(other, one)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8))
def test_any_numbers_can_be_packed(numbers: list[float]) -> None:
    assert len(pack(numbers)) == len(numbers)
