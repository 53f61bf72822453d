import pytest

from search import count, first_place, last_place

VALUES = [1, 2, 2, 2, 3, 5, 5, 8]


@pytest.mark.parametrize(
    ("wanted", "place"), [(1, 0), (2, 1), (3, 4), (5, 5), (8, 7), (4, -1), (9, -1), (0, -1)]
)
def test_the_first_place_is_found(wanted, place):
    assert first_place(VALUES, wanted) == place


@pytest.mark.parametrize(
    ("wanted", "place"), [(1, 0), (2, 3), (3, 4), (5, 6), (8, 7), (4, -1), (9, -1), (0, -1)]
)
def test_the_last_place_is_found(wanted, place):
    assert last_place(VALUES, wanted) == place


@pytest.mark.parametrize(("wanted", "times"), [(2, 3), (5, 2), (1, 1), (4, 0)])
def test_values_are_counted(wanted, times):
    assert count(VALUES, wanted) == times


def test_nothing_is_found_in_nothing():
    assert first_place([], 1) == -1
    assert last_place([], 1) == -1
    assert count([], 1) == 0


class Counting(list):
    looks = 0

    def __getitem__(self, place):
        Counting.looks += 1
        return super().__getitem__(place)


def test_few_values_are_looked_at():
    values = Counting(range(100_000))
    assert first_place(values, 77_777) == 77_777
    assert Counting.looks < 100
