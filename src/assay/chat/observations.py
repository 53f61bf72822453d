"""The results of a cell: text for the model, files for the user.

Also makes short previews of files that a user loads. The sandbox reads them, never this process.
"""

from base64 import b64encode
from contextlib import suppress
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from assay.contracts.artifacts import media_type_of
from assay.contracts.chat import ArtifactSource, StoredArtifact
from assay.contracts.errors import WorkspaceError
from assay.contracts.execution import CellResult, PythonCode, Reason, RichOutput
from assay.contracts.messages import Picture
from assay.contracts.ports import ChatLog, Sandbox
from assay.sandbox.tree_io import build_folders, is_work
from assay.text.formatting import trim

_OBSERVATION_CHARS: Final = 6_000
_LARGEST_FILE: Final = 32 << 20
_MOST_FILES: Final = 20
"""Limit per cell; a cell that unpacks an archive does not produce that many artifacts."""
_MOST_COMPARED: Final = 200
"""Files that are compared by content; for files beyond this number, only the sizes are compared."""
_PICTURES: Final = {
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
}
"""The media types of figures, best first, with their file suffixes."""
_TABLE: Final = "text/html"
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_LARGEST_PICTURE: Final = 1 << 20
MOST_PICTURES: Final = 2
"""The most figures that a model receives in one message."""
_ENDINGS: Final = {
    Reason.TIMED_OUT: "The cell was ended because its time was up.",
    Reason.CPU_TIME: "The cell was ended because it used up its processor time.",
    Reason.OUT_OF_MEMORY: "The cell was ended because it used up its memory.",
    Reason.TOO_MANY_PROCESSES: "The cell was ended because it started too many processes.",
    Reason.DISK_FULL: "The cell was ended because the disk was full.",
    Reason.OUTPUT_LIMIT: "The cell was ended because it printed too much.",
    Reason.CANCELLED: "The cell was interrupted.",
    Reason.SIGNALLED: "The cell crashed the interpreter.",
}
_ROLLED_BACK: Final = "Variables are as they were before it."

Seen = dict[PurePosixPath, tuple[int, str]]
"""Size and SHA-256 of each file; the hash is empty for files that are compared by size only."""


async def look_around(sandbox: Sandbox) -> Seen:
    """Return the size and hash of each file in the workspace."""
    found = await sandbox.list_files()
    built = build_folders(file.path for file in found)
    files = [file for file in found if file.kind == "file" and is_work(file.path, built)]
    seen: Seen = {file.path: (file.size_bytes, "") for file in files}
    for file in files[:_MOST_COMPARED]:
        with suppress(WorkspaceError):
            content = await sandbox.read_file(file.path, max_bytes=_LARGEST_FILE)
            seen[file.path] = (len(content), sha256(content).hexdigest())
    return seen


async def keep_shown(outputs: tuple[RichOutput, ...], record: ChatLog) -> list[StoredArtifact]:
    """Store the figures and tables that a cell displayed."""
    kept: list[StoredArtifact] = []
    for output in outputs:
        picture = next((form for form in _PICTURES if form in output.forms), None)
        media_type = picture or (_TABLE if _TABLE in output.forms else None)
        if media_type is None:
            continue
        source: ArtifactSource = "figure" if picture else "table"
        kept.append(
            await record.keep_exhibit(
                f"{source}{_PICTURES.get(media_type, '.html')}",
                output.forms[media_type],
                media_type=media_type,
                source=source,
            )
        )
    return kept


def pictures_in(outputs: tuple[RichOutput, ...]) -> tuple[Picture, ...]:
    """Return the newest figures of a cell that are small enough for a model."""
    found = [output.forms["image/png"] for output in outputs if "image/png" in output.forms]
    fit = [png for png in found if len(png) <= _LARGEST_PICTURE and png.startswith(_PNG)]
    return tuple(
        Picture(media_type="image/png", base64=b64encode(png).decode())
        for png in fit[-MOST_PICTURES:]
    )


async def keep_written(sandbox: Sandbox, before: Seen, record: ChatLog) -> list[StoredArtifact]:
    """Store new and changed files, except those that are too large or beyond the maximum number."""
    now = await look_around(sandbox)
    changed = [path for path, seen in sorted(now.items()) if before.get(path) != seen]
    kept: list[StoredArtifact] = []
    for path in changed[:_MOST_FILES]:
        try:
            content = await sandbox.read_file(path, max_bytes=_LARGEST_FILE)
        except WorkspaceError:
            continue
        kept.append(
            await record.keep_exhibit(
                path.name,
                content,
                media_type=media_type_of(path, content),
                source="file",
                path=str(path),
            )
        )
    return kept


def describe(result: CellResult, artifacts: list[StoredArtifact]) -> str:
    """Return all results as text, in reading order."""
    execution = result.execution
    parts = [execution.stdout.rstrip(), execution.stderr.rstrip()]
    # The text of a figure says no more than its mention.
    parts += [
        output.text
        for output in result.outputs
        if output.kind == "value" or not any(form in output.forms for form in _PICTURES)
    ]
    if result.error is not None:
        parts.append("\n".join(result.error.traceback) or result.error.message)
    parts += [_ENDINGS[execution.reason]] if execution.reason in _ENDINGS else []
    parts += [_ROLLED_BACK] if result.state == "rolled_back" else []
    for artifact in artifacts:
        if artifact.source == "figure":
            parts.append("[figure shown]")
        elif artifact.source == "file":
            parts.append(f"[wrote {artifact.path}, {artifact.size_bytes} bytes]")
        # The output already has the text of a table.
    text = trim("\n".join(part for part in parts if part), max_chars=_OBSERVATION_CHARS)
    if execution.truncated:
        text += "\n[it printed more than was kept]"
    return text or "(the cell ran and printed nothing)"


def interrupted(printed: str) -> str:
    """Return the text for a cell that the user interrupted, with its output so far."""
    parts = (trim(printed.rstrip(), max_chars=_OBSERVATION_CHARS), _ENDINGS[Reason.CANCELLED])
    return "\n".join(part for part in parts if part)


_CHARS: Final = 1_500
_WITHIN_S: Final = 20.0
_TABLES: Final = frozenset({".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".xls"})
_SUMMARY: Final = """
import sys
import pandas as pd

path = sys.argv[1]
end = path.rpartition(".")[2].lower()
read = {
    "csv": pd.read_csv,
    "tsv": lambda path: pd.read_csv(path, sep="\\t"),
    "json": pd.read_json,
    "jsonl": lambda path: pd.read_json(path, lines=True),
    "parquet": pd.read_parquet,
}.get(end, pd.read_excel)
table = read(path)
print(f"{len(table)} rows, {len(table.columns)} columns")
for name, kind in list(table.dtypes.items())[:40]:
    values = table[name]
    missing = int(values.isna().sum())
    print(f"- {name}: {kind}" + (f", {missing} missing" if missing else ""))
print("First rows:")
print(table.head(3).to_csv(index=False).rstrip())
"""


async def preview(sandbox: Sandbox, path: PurePosixPath, content: bytes) -> str:
    """Describe a file: columns and first rows of a table, or the beginning of a text."""
    kind = media_type_of(path, content)
    if path.suffix.lower() in _TABLES:
        program = PythonCode(source=_SUMMARY.encode(), args=(str(path),), timeout_s=_WITHIN_S)
        result = await sandbox.run(program)
        if result.succeeded:
            return trim(result.stdout, max_chars=_CHARS)
    if kind.startswith("text/") or kind.endswith(("json", "xml", "yaml", "toml")):
        text = content[: _CHARS * 4].decode("utf-8", errors="replace")
        return f"{kind}, begins:\n{trim(text, max_chars=_CHARS)}"
    return f"{kind}, {len(content)} bytes"
