"""What a file is said to be follows from its content."""

import io
import zipfile
from pathlib import PurePosixPath

import pytest

from assay.contracts.artifacts import describe_file, media_type_of
from assay.contracts.workspace import TreeFile

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def a_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", "b")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "media_type"),
    [
        ("plot.png", PNG, "image/png"),
        ("plot", PNG, "image/png"),
        ("notes.txt", PNG, "image/png"),
        ("photo.jpg", b"\xff\xd8\xff\xe0 JFIF", "image/jpeg"),
        ("table.csv", b"a,b\n1,2\n", "text/csv"),
        ("TABLE.CSV", b"a,b\n1,2\n", "text/csv"),
        ("data.json", b'{"a": 1}', "application/json"),
        ("data", b"[1, 2]", "application/json"),
        ("data.json", b"{broken", "text/plain"),
        ("rows.jsonl", b'{"a": 1}\n{"a": 2}\n', "application/jsonl"),
        ("page.html", b"<p>hello", "text/html"),
        ("innocent.txt", b"  <!DOCTYPE html><script>", "text/html"),
        ("drawing.svg", b'<?xml version="1.0"?><svg xmlns="x"/>', "image/svg+xml"),
        ("paper.pdf", b"%PDF-1.7 ...", "application/pdf"),
        ("frame.parquet", b"PAR1....PAR1", "application/vnd.apache.parquet"),
        ("base.db", b"SQLite format 3\0...", "application/vnd.sqlite3"),
        ("array.npy", b"\x93NUMPY\x01\0", "application/x-npy"),
        ("sums.xlsx", a_zip(), "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ("all.zip", a_zip(), "application/zip"),
        ("main.py", b"print(1)\n", "text/x-python"),
        ("README", "caf\u00e9\n".encode(), "text/plain"),
        ("empty", b"", "text/plain"),
        ("noise.png", bytes(range(256)), "application/octet-stream"),
        ("script.png", b"#!/bin/sh\n", "text/x-script"),
        ("latin.csv", b"caf\xe9,1\n", "application/octet-stream"),
    ],
)
def test_the_content_decides_and_the_name_only_between_texts(
    name: str, content: bytes, media_type: str
) -> None:
    assert media_type_of(PurePosixPath(name), content) == media_type


def test_a_file_is_described_with_size_and_digest() -> None:
    described = describe_file(PurePosixPath("a/b.txt"), TreeFile(b"abc"))

    assert described.path == PurePosixPath("a/b.txt")
    assert described.size_bytes == 3
    assert described.sha256.startswith("ba7816bf")


def test_json_that_is_nested_without_end_is_only_text() -> None:
    assert media_type_of(PurePosixPath("deep.json"), b"[" * 100_000) == "text/plain"
