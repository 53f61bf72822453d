import os
from pathlib import Path

import pytest

from assay.chat.session import read_upload
from assay.contracts.errors import UsageError


def test_a_file_that_is_loaded_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\n")

    assert read_upload(tmp_path / "a.csv") == b"a,b\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "is a folder"),
        ("pipe", "is a device or a pipe"),
        ("missing", "there is no file"),
        # The system refuses any look at it, as it does in a folder that one may not enter.
        ("a" * 300, "cannot be read"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_a_line(tmp_path: Path, name: str, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match=said):
        read_upload(tmp_path / name)
