import pytest

from assay.agent.strategies.whole_file import tidy_module

ADD = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    "extra",
    [
        "print(add(1, 2))\n",
        "assert add(1, 2) == 3\n",
        "def test_add():\n    assert add(1, 2) == 3\n",
        "if __name__ == '__main__':\n    print(add(1, 2))\n",
        "class TestAdd(unittest.TestCase):\n    def test(self):\n        pass\n",
        "unittest.main()\n",
        "test_add()\n",
    ],
)
def test_demonstrations_are_taken_out(extra: str) -> None:
    assert tidy_module(ADD + extra) == ADD


@pytest.mark.parametrize(
    "source",
    [
        ADD,
        "import sys\nTABLE = {1: 2}\nTABLE.update({3: 4})\n",
        "if __name__ == '__main__':\n    main()\n",
        "print('only this')\n",
        "def broken(:\n",
        "",
    ],
)
def test_other_code_stays_as_it_is(source: str) -> None:
    assert tidy_module(source) == source


def test_a_decorated_test_goes_with_its_decorator() -> None:
    assert tidy_module(ADD + "@mark\ndef test_add():\n    pass\n") == ADD
