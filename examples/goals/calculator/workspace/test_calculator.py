import pytest

from calculator import evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1+2", 3),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("2 + 3 * (4 - 1)", 11),
        ("-3 + 5", 2),
        ("2 * -3", -6),
        ("-(2 + 1)", -3),
        ("10 / 4", 2.5),
        ("8 / 2 / 2", 2),
        ("10 - 2 - 3", 5),
        ("1.5 * 2", 3),
        ("((1))", 1),
        (" 7 ", 7),
    ],
)
def test_arithmetic_is_computed(text, value):
    assert evaluate(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "  ", "1 +", "(1", "1)", "a + 1", "1 2", "* 3", "()"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError):
        evaluate(text)


def test_dividing_by_zero_is_an_error():
    with pytest.raises(ZeroDivisionError):
        evaluate("1 / 0")
