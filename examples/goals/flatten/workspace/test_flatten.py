import pytest

from flatten import flatten


@pytest.mark.parametrize(
    ("data", "flat"),
    [
        ({}, {}),
        ({"a": 1}, {"a": 1}),
        ({"a": {"b": 1, "c": {"d": 2}}}, {"a.b": 1, "a.c.d": 2}),
        ({"a": [1, 2, {"b": 3}]}, {"a.0": 1, "a.1": 2, "a.2.b": 3}),
        ({"a": {}, "b": []}, {"a": {}, "b": []}),
        ({"a": [[1], [2, 3]]}, {"a.0.0": 1, "a.1.0": 2, "a.1.1": 3}),
        ({"a": None, "b": False}, {"a": None, "b": False}),
    ],
)
def test_data_becomes_flat(data, flat):
    assert flatten(data) == flat


def test_the_separator_can_be_chosen():
    assert flatten({"a": {"b": 1}}, separator="/") == {"a/b": 1}
