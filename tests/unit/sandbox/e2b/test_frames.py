"""What comes out of a machine is read as a stranger's."""

import json
from typing import Any

import pytest

from assay.contracts.errors import (
    FileTooLargeError,
    SandboxUnavailableError,
    WorkspaceFileNotFoundError,
)
from assay.contracts.execution import Reason
from assay.sandbox.e2b.sandbox import (
    Frame,
    FrameReader,
    data_of,
    ending_of,
    entry_of,
    refusal_of,
)
from assay.sandbox.output import Capture

END: Frame = {"frame": "end", "report": {"ended": 0, "cpu_s": 0.1}, "killed_for": None}


def read(*pieces: str) -> list[Frame]:
    frames: list[Frame] = []
    reader = FrameReader(frames.append)
    for piece in pieces:
        reader.feed(piece)
    return frames


def test_frames_are_cut_at_line_ends_however_they_arrive() -> None:
    text = json.dumps({"frame": "done"}) + "\n" + json.dumps({"frame": "end"}) + "\n"

    assert read(*text) == read(text) == [{"frame": "done"}, {"frame": "end"}]


@pytest.mark.parametrize("line", ["nonsense", "[1]", "1", "[" * 100_000, '"x"'])
def test_a_line_that_is_no_frame_is_an_error(line: str) -> None:
    with pytest.raises(SandboxUnavailableError, match="makes no sense"):
        read(line + "\n")


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    with pytest.raises(SandboxUnavailableError, match="has no end"):
        read("x" * (2 << 20))


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", "", "."])
def test_an_entry_outside_the_workspace_is_not_believed(path: str) -> None:
    with pytest.raises(SandboxUnavailableError):
        entry_of({"path": path, "kind": "file", "size_bytes": 1})


@pytest.mark.parametrize("data", [None, 7, "not base64!", {"a": 1}])
def test_bytes_that_are_none_are_an_error(data: Any) -> None:
    with pytest.raises(SandboxUnavailableError):
        data_of({"data": data})


def test_refusals_are_those_of_the_contract_and_no_others() -> None:
    missing = refusal_of({"error": "WorkspaceFileNotFoundError", "message": "'a': not there"})
    large = refusal_of(
        {"error": "FileTooLargeError", "message": "", "size_bytes": 9, "max_bytes": 3}
    )

    assert isinstance(missing, WorkspaceFileNotFoundError)
    assert isinstance(large, FileTooLargeError)
    assert (large.size_bytes, large.max_bytes) == (9, 3)
    assert isinstance(refusal_of({"error": "SystemExit"}), SandboxUnavailableError)


def test_an_end_is_read_with_its_reason() -> None:
    ending, full = ending_of(END | {"killed_for": "timed_out", "disk_full": True}, *captures())

    assert ending.killed_for is Reason.TIMED_OUT
    assert full


@pytest.mark.parametrize(
    "wrong",
    [
        {"report": None},
        {"killed_for": "fun"},
        {"memory_bytes": -1},
        {"duration_s": float("nan")},
        {"cpu_s": "much"},
        {"report": {"ended": "soon"}},
        {"report": {"ended": 127}},
        {"report": {"ended": 0xFFFF}},
        {"report": {"ended": 1 << 40}},
    ],
)
def test_an_end_that_cannot_be_is_an_error(wrong: Frame) -> None:
    with pytest.raises(SandboxUnavailableError):
        ending_of(END | wrong, *captures())


def captures() -> tuple[Capture, Capture]:
    return Capture(10), Capture(10)
