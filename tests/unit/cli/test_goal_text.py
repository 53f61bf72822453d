"""Where the words of a goal come from."""

import io
from pathlib import Path

import pytest

from assay.cli.run import read_goal
from assay.contracts.errors import UsageError


def test_a_goal_is_a_sentence_a_file_or_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "goal.md").write_bytes(b"\xef\xbb\xbfWrite it.\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Mend it.\n")))

    assert read_goal("Do it.") == "Do it."
    assert read_goal(f"@{tmp_path}/goal.md") == "Write it."
    assert read_goal("-") == "Mend it."


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b" \n", "is empty"),
        (b"\x7fELF\0\0", "is not text"),
        (b"\xff\xfe", "is not text"),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_a_goal_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "goal.md"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UsageError, match=said):
        read_goal(f"@{path}")
