"""Where search lines are found, layer by layer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.agent.edits.match import AlreadyThere, Ambiguous, Found, Missed, locate

METHOD = """\
class Stack:
    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("empty")
        return self.items.pop()
"""


def after(text: str, search: str, replace: str) -> tuple[str, str]:
    """Return the text after the replacement, and how the place was found."""
    place = locate(text, search, replace)
    assert isinstance(place, Found), place
    return text[: place.start] + place.replacement + text[place.end :], place.how


@pytest.mark.parametrize(
    ("text", "search", "replace", "expected", "how"),
    [
        pytest.param("a\nb\nc\n", "b\n", "B\n", "a\nB\nc\n", "", id="exact"),
        pytest.param("a\nb\nc\n", "b\n", "", "a\nc\n", "", id="removed"),
        pytest.param("ab\nb\n", "b\n", "B\n", "ab\nB\n", "", id="whole lines, not the end of one"),
        pytest.param("f(1)\nf(12)\n", "f(1)", "f(2)", "f(2)\nf(12)\n", "", id="part of a line"),
        pytest.param("x = 1; xx = 1\n", "x = 1", "x = 2", "x = 2; xx = 1\n", "", id="whole word"),
        pytest.param("a\nb\n", "b\n", "B", "a\nB\n", "", id="last line end forgotten"),
        pytest.param(
            "a  \nb\t\nc\n", "a\nb\n", "x\n", "x\nc\n", "trailing whitespace", id="trailing"
        ),
        pytest.param(
            "a\nb\n", "\na\n\n", "\nx\n", "x\nb\n", "blank lines around", id="outer blanks"
        ),
        pytest.param(
            "if a:\n    b(  )\n    c()\n",
            "b(  )\nc()\n",
            "if d:\n    e()\n",
            "if a:\n    if d:\n        e()\n",
            "indentation",
            id="not indented enough",
        ),
        pytest.param(
            "def f():\n    a()\n\n    b()\n",
            "        a()\n\n        b()\n",
            "        a()\n\n        if c:\n            b()\n",
            "def f():\n    a()\n\n    if c:\n        b()\n",
            "indentation",
            id="indented too much",
        ),
        pytest.param(
            "def f():\n\tif a:\n\t\tb()\n",
            "    if a:\n        b()\n",
            "    if a:\n        c()\n        d()\n",
            "def f():\n\tif a:\n\t\tc()\n\t\td()\n",
            "indentation",
            id="tabs written as spaces",
        ),
        pytest.param(
            "a = 1\n\n\nb = 2\nc = 3\n",
            "a = 1\nb = 2\n",
            "a = 4\n",
            "a = 4\nc = 3\n",
            "blank lines",
            id="inner blanks",
        ),
    ],
)
def test_a_place_is_found(text: str, search: str, replace: str, expected: str, how: str) -> None:
    result, found_how = after(text, search, replace)

    assert result == expected
    assert how in found_how
    assert bool(how) == bool(found_how)


def test_nearly_equal_lines_are_found_in_one_place() -> None:
    search = (
        "    def pop(self):\n        if not self.item:\n            raise IndexError('empty')\n"
        "        return self.items.pop()\n"
    )

    place = locate(METHOD, search, "    def pop(self):\n        return self.items.pop()\n")

    assert isinstance(place, Found)
    assert place.guessed
    assert METHOD[place.start :].startswith("    def pop(self):")
    assert METHOD[place.end :] == ""


def test_nearly_equal_lines_in_two_places_are_ambiguous() -> None:
    text = METHOD + METHOD

    place = locate(text, '    if not self.item:\n        raise IndexError("empty!")\n', "pass\n")

    assert place == Ambiguous(lines=(6, 14))


def test_short_lines_are_never_guessed() -> None:
    place = locate("return x + 1\n", "return x - 1\n", "return 0\n")

    assert isinstance(place, Missed)
    assert place.near is not None


def test_a_near_miss_is_named() -> None:
    search = "    def pop(self):\n        while True:\n            return self.items.pop()\n"

    place = locate(METHOD, search, "")

    assert isinstance(place, Missed)
    assert place.near is not None
    assert METHOD.splitlines()[place.near.first] == "    def pop(self):"


def test_a_miss_of_everything_names_nothing() -> None:
    assert locate(METHOD, "SELECT * FROM t WHERE q\n", "") == Missed(near=None)


@pytest.mark.parametrize(
    ("text", "search"),
    [
        ("a\nb\na\n", "a\n"),
        ("f(a)\nf(a)\n", "f(a)"),
        ("  a\nb\n    a\n", "a\n"),
        ("a \nb\na\t\n", "a\n"),
    ],
)
def test_several_places_are_named(text: str, search: str) -> None:
    place = locate(text, search, "x\n")

    assert isinstance(place, Ambiguous)
    assert len(place.lines) == 2


@pytest.mark.parametrize(
    ("text", "search", "replace"),
    [
        pytest.param(
            "import os\nimport sys\n", "import os\n", "import os\nimport sys\n", id="added"
        ),
        pytest.param(
            "    return compute(a, b)\n",
            "    return a\n",
            "    return compute(a, b)\n",
            id="changed",
        ),
        pytest.param(
            "    return compute(a, b)\n", "return a\n", "return compute(a, b)\n", id="indented"
        ),
        pytest.param(
            "x = compute_all(a, b) + 1\n", "compute(a)", "compute_all(a, b) + 1", id="inside"
        ),
        pytest.param("a\n", "a\n", "a\n", id="nothing to change"),
    ],
)
def test_what_is_there_already_is_not_done_again(text: str, search: str, replace: str) -> None:
    assert locate(text, search, replace) == AlreadyThere()


def test_a_short_replacement_is_no_proof_of_having_been_applied() -> None:
    assert isinstance(locate("pass\n", "return compute(a, b)\n", "pass\n"), Missed)


def test_there_is_no_place_for_nothing() -> None:
    with pytest.raises(ValueError, match="nothing to search for"):
        locate("a\n", " \n", "b\n")


LINES = st.lists(st.text(alphabet="ab \t", max_size=6), min_size=1, max_size=8)


@given(before=LINES, inside=LINES, behind=LINES, new=LINES)
def test_lines_that_are_copied_exactly_are_found_or_ambiguous(
    before: list[str], inside: list[str], behind: list[str], new: list[str]
) -> None:
    text, search, replace = (
        "".join(f"{line}\n" for line in lines)
        for lines in ([*before, *inside, *behind], inside, new)
    )
    if not search.strip():
        return

    place = locate(text, search, replace)

    match place:
        case Found():
            assert not place.how
            assert text[place.start : place.end] == search
        case Ambiguous():
            assert len(place.lines) > 1
        case AlreadyThere():
            assert replace in text
        case Missed():
            raise AssertionError(place)


@given(text=LINES, search=LINES, replace=LINES)
def test_a_found_place_is_whole_lines_inside_the_text(
    text: list[str], search: list[str], replace: list[str]
) -> None:
    whole = "".join(f"{line}\n" for line in text)
    wanted = "".join(f"{line}\n" for line in search)
    if not wanted.strip():
        return

    place = locate(whole, wanted, "".join(f"{line}\n" for line in replace))

    if isinstance(place, Found):
        assert 0 <= place.start < place.end <= len(whole)
        assert place.start == 0 or whole[place.start - 1] == "\n"
        assert whole[place.end - 1] == "\n"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("line", ["0, 0, 0, 0,", "x" * 500, "", "    return self.items[0]"])
def test_a_long_dull_file_is_searched_in_no_time(line: str) -> None:
    text = f"{line}\n" * 8_000
    search = f"{line}\n" * 300 + "something else that is not there\n"

    assert isinstance(locate(text, search, ""), Missed | Ambiguous | Found)
