"""Long output made short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.text.formatting import head_and_tail, readable


@given(text=st.text(alphabet="ab\n", max_size=300), max_chars=st.integers(1, 200))
def test_what_is_cut_keeps_its_ends_and_counts_the_rest(text: str, max_chars: int) -> None:
    short = head_and_tail(text, max_chars=max_chars)

    if len(text) <= max_chars:
        assert short == text
        return
    head, _, rest = short.partition("\n[... ")
    count, _, tail = rest.partition(" characters left out ...]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) <= max_chars
    left_out = int(count.rpartition(" ")[2])
    assert len(text) - left_out - len(tail) >= len(head)


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
    assert readable(printed) == shown
