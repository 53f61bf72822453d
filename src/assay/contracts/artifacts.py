"""Artifacts: files that a program made, with a media type read from their content."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.workspace import TreeFile

UNKNOWN: Final = "application/octet-stream"
_PLAIN: Final = "text/plain"

_SIGNATURES: Final = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"ARROW1\0\0", "application/vnd.apache.arrow.file"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
    (0, b"\x93NUMPY", "application/x-npy"),
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"PK\x05\x06", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"BZh", "application/x-bzip2"),
    (0, b"\xfd7zXZ\0", "application/x-xz"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (257, b"ustar", "application/x-tar"),
    (0, b"\x7fELF", "application/x-executable"),
    (0, b"\0asm", "application/wasm"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
)
_ZIPPED: Final = {
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".npz": "application/x-npz",
    ".whl": "application/x-wheel",
    ".jar": "application/java-archive",
}
_TEXTS: Final = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".htm": "text/html",
    ".html": "text/html",
    ".md": "text/markdown",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".py": "text/x-python",
    ".sh": "text/x-shellscript",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".jsonl": "application/jsonl",
    ".ndjson": "application/jsonl",
    ".tex": "text/x-tex",
}
_BEGINNINGS: Final = (
    ("<!doctype html", "text/html"),
    ("<html", "text/html"),
    ("<svg", "image/svg+xml"),
    ("<?xml", "application/xml"),
    ("#!/", "text/x-script"),
)
_JSON_STARTS: Final = ("{", "[", '"')
_MOST_JSON_BYTES: Final = 4 << 20
_LOOKED_AT: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file that came out of a sandbox. Its content is untrusted, as is its type."""

    path: PurePosixPath
    """Relative to the workspace root."""
    media_type: str
    size_bytes: int
    sha256: str


def describe_file(path: PurePosixPath, file: TreeFile) -> Artifact:
    """Describe a file: path, size, digest and media type."""
    return Artifact(
        path=path,
        media_type=media_type_of(path, file.content),
        size_bytes=file.size,
        sha256=hashlib.sha256(file.content).hexdigest(),
    )


def media_type_of(path: PurePosixPath, content: bytes) -> str:
    """Return the media type that the content shows; the name only distinguishes kinds of text."""
    suffix = path.suffix.lower()
    for offset, mark, media_type in _SIGNATURES:
        if content.startswith(mark, offset):
            if media_type == "application/zip":
                return _ZIPPED.get(suffix, media_type)
            return media_type
    text = _as_text(content)
    return UNKNOWN if text is None else _kind_of_text(suffix, text)


def _as_text(content: bytes) -> str | None:
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _kind_of_text(suffix: str, text: str) -> str:
    beginning = text[:_LOOKED_AT].lstrip().lower()
    svg = "<svg" in beginning
    for mark, media_type in _BEGINNINGS:
        if beginning.startswith(mark):
            # Content that a browser would run gets its real type, under any file name.
            return "image/svg+xml" if svg and media_type == "application/xml" else media_type
    if suffix in _TEXTS:
        return _TEXTS[suffix]
    named_json = suffix in {".json", ".geojson", ".ipynb"}
    if (named_json or beginning.startswith(_JSON_STARTS)) and _is_json(text):
        return "application/json"
    return _PLAIN


def _is_json(text: str) -> bool:
    if len(text) > _MOST_JSON_BYTES:
        return text.lstrip()[:1] in _JSON_STARTS
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
