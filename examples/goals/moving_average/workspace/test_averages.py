import pytest

from averages import median, moving_average


def test_means_of_neighbours():
    assert moving_average([1, 2, 3, 4, 5], 2) == pytest.approx([1.5, 2.5, 3.5, 4.5])
    assert moving_average([3, 3, 3], 3) == pytest.approx([3.0])


def test_a_window_that_is_too_wide_gives_nothing():
    assert moving_average([1, 2], 3) == []


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_is_positive(window):
    with pytest.raises(ValueError):
        moving_average([1, 2, 3], window)


@pytest.mark.parametrize(("values", "middle"), [([5], 5), ([3, 1, 2], 2), ([4, 1, 3, 2], 2.5)])
def test_the_middle_is_found(values, middle):
    assert median(values) == pytest.approx(middle)


def test_the_median_leaves_its_argument_alone():
    values = [3, 1, 2]
    median(values)
    assert values == [3, 1, 2]


def test_nothing_has_no_median():
    with pytest.raises(ValueError):
        median([])
