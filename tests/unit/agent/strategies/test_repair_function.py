import pytest

from assay.agent.steps.code import with_function

MODULE = """\
import math


def area(r):
    return math.pi * r


class Box:
    def __init__(self, side):
        self.side = side

    @property
    def volume(self):
        return self.side
"""


def test_a_function_is_replaced_and_the_rest_stays() -> None:
    after = with_function(MODULE, "area", "def area(r):\n    return math.pi * r**2\n")

    assert after == MODULE.replace("math.pi * r", "math.pi * r**2")


def test_a_method_is_replaced_in_its_class_however_it_was_indented() -> None:
    written = "@property\ndef volume(self):\n    return self.side**3"

    for text in (written, "class Box:\n    " + written.replace("\n", "\n    ")):
        after = with_function(MODULE, "Box.volume", text)
        assert after == MODULE.replace("return self.side\n", "return self.side**3\n")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("area", "def other(r):\n    return 1\n"),
        ("area", "def area(r:\n"),
        ("area", ""),
        ("missing", "def missing():\n    pass\n"),
    ],
)
def test_what_cannot_be_replaced_is_left(name: str, written: str) -> None:
    assert with_function(MODULE, name, written) is None
