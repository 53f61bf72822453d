"""Tools for the files of a sandbox: read and list files.

`WORKSPACE_TOOLS` has these, the search and the tools that run programs.
"""

from collections import Counter
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field

from assay.contracts.errors import ToolError, WorkspaceFileNotFoundError
from assay.contracts.ports import Sandbox, Tool
from assay.tools.arguments import tool, with_hint, workspace_path
from assay.tools.run import python, run
from assay.tools.search import QUIET_DIRECTORIES, search

_MOST_FILE_BYTES = 8 << 20
_MOST_LINES = 500
_MOST_CHARS = 24_000
_LONGEST_LINE_CHARS = 2000
_MOST_ENTRIES = 300


# Without line numbers, so that a model can copy lines into an edit.
@tool
async def read_file(
    sandbox: Sandbox,
    path: Annotated[str, Field(min_length=1, description="Path from the workspace root.")],
    from_line: Annotated[int, Field(ge=1, description="First line, counted from 1.")] = 1,
    to_line: Annotated[int, Field(ge=0, description="Last line; 0 for as many as fit.")] = 0,
) -> str:
    """Read a text file, or lines of it."""
    file = workspace_path(path)
    try:
        content = await sandbox.read_file(file, max_bytes=_MOST_FILE_BYTES)
    except WorkspaceFileNotFoundError as error:
        found = [info.path for info in await sandbox.list_files() if info.path.name == file.name]
        near = f"; did you mean {' or '.join(map(str, found[:3]))}?" if found else ""
        raise ToolError(f"{with_hint(error)}{near}") from error
    if b"\0" in content[:8192]:
        return f"{file} is not text ({len(content)} bytes)."
    lines = content.decode("utf-8", errors="replace").splitlines()
    if not lines:
        return f"{file} is empty."
    if from_line > len(lines):
        raise ToolError(f"{file} has only {len(lines)} lines")
    last = min(to_line or len(lines), len(lines), from_line + _MOST_LINES - 1)
    if last < from_line:
        raise ToolError(f"from_line {from_line} comes after to_line {to_line}")
    shown: list[str] = []
    room = _MOST_CHARS
    for line in lines[from_line - 1 : last]:
        short = line if len(line) <= _LONGEST_LINE_CHARS else f"{line[:_LONGEST_LINE_CHARS]} [...]"
        room -= len(short) + 1
        if room < 0 and shown:
            break
        shown.append(short)
    last = from_line + len(shown) - 1
    rest = "" if last == len(lines) else f"; read on from line {last + 1}"
    head = f"{file}, lines {from_line} to {last} of {len(lines)}{rest}:"
    return "\n".join([head, *shown])


@tool
async def list_files(
    sandbox: Sandbox,
    path: Annotated[str, Field(description="A directory, from the workspace root.")] = ".",
) -> str:
    """List all files below a directory."""
    root = workspace_path(path)
    found = await sandbox.list_files(root)
    quiet: Counter[PurePosixPath] = Counter()
    rows: list[str] = []
    filled = {parent for info in found for parent in info.path.parents}
    for info in found:
        above = _quiet_directory(root, info.path)
        if above is not None and info.path != above:
            quiet[above] += info.kind != "directory"
        elif info.kind != "directory":
            kind = "" if info.kind == "file" else f", {info.kind}"
            rows.append(f"{info.path} ({info.size_bytes} bytes{kind})")
        elif info.path not in filled:
            rows.append(f"{info.path}/ (empty)")
    rows += [f"{path}/ ({count} files, not listed)" for path, count in quiet.items()]
    if not rows:
        return f"{root} is empty."
    left_out = len(rows) - _MOST_ENTRIES
    more = [f"[... {left_out} more; list a directory below ...]"] if left_out > 0 else []
    return "\n".join([*sorted(rows)[:_MOST_ENTRIES], *more])


def _quiet_directory(root: PurePosixPath, path: PurePosixPath) -> PurePosixPath | None:
    """Return the first such directory in a path below the requested one."""
    known = len(root.parts)
    for depth in range(known, len(path.parts)):
        if path.parts[depth] in QUIET_DIRECTORIES:
            return PurePosixPath(*path.parts[: depth + 1])
    return None


WORKSPACE_TOOLS: tuple[Tool, ...] = (run, python, read_file, list_files, search)
