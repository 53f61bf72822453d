from intervals import merge


def test_nothing_stays_nothing():
    assert merge([]) == []


def test_overlapping_intervals_are_joined():
    assert merge([(1, 3), (2, 6), (8, 10)]) == [(1, 6), (8, 10)]


def test_touching_intervals_are_joined():
    assert merge([(1, 2), (2, 3)]) == [(1, 3)]


def test_the_order_does_not_matter():
    assert merge([(15, 18), (1, 3), (8, 10), (2, 6)]) == [(1, 6), (8, 10), (15, 18)]


def test_an_interval_inside_another_one_vanishes():
    assert merge([(1, 10), (2, 3), (4, 5)]) == [(1, 10)]


def test_the_argument_is_left_alone():
    given = [(3, 4), (1, 2)]
    merge(given)
    assert given == [(3, 4), (1, 2)]
