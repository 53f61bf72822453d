"""Tools of the filesystem server."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.errors import ToolError
from assay.contracts.execution import FileInfo
from assay.contracts.ports import OnOutput
from assay.mcp.server import (
    Answer,
    AnyTool,
    PathArguments,
    Said,
    ServedTool,
    WorkspaceArguments,
    path_in,
)
from assay.mcp.workspaces import Workspace

_MOST_ENTRIES: Final = 1000

Encoding = Literal["utf-8", "base64"]


class _Read(PathArguments):
    base64: bool = Field(
        default=False, description="Give the content as base64; needed for what is not text."
    )


class _FileContent(Answer):
    path: str
    size_bytes: int
    encoding: Encoding
    content: str


class _Write(PathArguments):
    content: str = Field(description="The whole new content.")
    base64: bool = Field(default=False, description="The content is base64, for what is not text.")
    executable: bool = Field(default=False, description="Whether the file can be run.")


class _Written(Answer):
    path: str
    size_bytes: int


class _List(WorkspaceArguments):
    path: str = Field(default=".", max_length=4096, description="A directory, from the root.")
    recursive: bool = Field(default=False, description="Also list what is in directories below.")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size_bytes: int
    executable: bool


class _Listing(Answer):
    path: str
    entries: list[_Entry]
    left_out: int = Field(description="The number of entries that are not listed.")


class _Path(PathArguments):
    pass


class _Changed(Answer):
    path: str


def file_tools(*, most_bytes: int) -> tuple[AnyTool, ...]:
    """Return the tools of the filesystem server, for files up to this size."""
    return (
        ServedTool(
            name="sandbox_read_file",
            title="Read a file",
            description="Read a file of the workspace.",
            arguments=_Read,
            answer=_FileContent,
            call=_reader(most_bytes),
            reads_only=True,
        ),
        ServedTool(
            name="sandbox_write_file",
            title="Write a file",
            description="Create or replace a file of the workspace, and directories on the way.",
            arguments=_Write,
            answer=_Written,
            call=_writer(most_bytes),
            destroys=True,
            repeatable=True,
        ),
        *_DIRECTORY_TOOLS,
    )


def _reader(most_bytes: int) -> Callable[[_Read, Workspace, OnOutput], Awaitable[Said]]:
    async def read(wanted: _Read, workspace: Workspace, on_output: OnOutput) -> Said:
        del on_output
        path = path_in(wanted.path)
        content = await workspace.sandbox.read_file(path, max_bytes=most_bytes)
        if wanted.base64:
            text = base64.b64encode(content).decode("ascii")
        else:
            text = _as_text(content, str(path))
        answer = _FileContent(
            workspace=workspace.handle,
            path=str(path),
            size_bytes=len(content),
            encoding="base64" if wanted.base64 else "utf-8",
            content=text,
        )
        return Said(answer=answer, text=text)

    return read


def _as_text(content: bytes, path: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ToolError(
            f"{path!r} is not text ({len(content)} bytes): ask for it with `base64` set to true"
        ) from None


def _writer(most_bytes: int) -> Callable[[_Write, Workspace, OnOutput], Awaitable[Said]]:
    async def write(wanted: _Write, workspace: Workspace, on_output: OnOutput) -> Said:
        del on_output
        path = path_in(wanted.path)
        content = _as_bytes(wanted)
        if len(content) > most_bytes:
            raise ToolError(f"{len(content)} bytes are too many for one file: {most_bytes} at most")
        await workspace.sandbox.write_file(path, content, executable=wanted.executable)
        answer = _Written(workspace=workspace.handle, path=str(path), size_bytes=len(content))
        return Said(answer=answer, text=f"wrote {len(content)} bytes to {path}")

    return write


def _as_bytes(wanted: _Write) -> bytes:
    try:
        if wanted.base64:
            return base64.b64decode(wanted.content, validate=True)
        return wanted.content.encode("utf-8")
    except (binascii.Error, ValueError) as error:
        kind = "base64" if wanted.base64 else "text"
        raise ToolError(f"the content is not {kind}: {error}") from error


async def _list(wanted: _List, workspace: Workspace, on_output: OnOutput) -> Said:
    del on_output
    path = path_in(wanted.path)
    found = await workspace.sandbox.list_files(path)
    if not wanted.recursive:
        found = tuple(info for info in found if info.path.parent == path)
    shown = [_entry(info) for info in found[:_MOST_ENTRIES]]
    left_out = len(found) - len(shown)
    answer = _Listing(workspace=workspace.handle, path=str(path), entries=shown, left_out=left_out)
    lines = [
        f"{entry.path}/"
        if entry.kind == "directory"
        else f"{entry.path} ({entry.size_bytes} bytes)"
        for entry in shown
    ]
    lines += [f"[... {left_out} more ...]"] if left_out else []
    return Said(answer=answer, text="\n".join(lines) or f"{path} is empty")


def _entry(info: FileInfo) -> _Entry:
    return _Entry(
        path=str(info.path),
        kind=info.kind,
        size_bytes=info.size_bytes,
        executable=info.executable,
    )


async def _make_directory(wanted: _Path, workspace: Workspace, on_output: OnOutput) -> Said:
    del on_output
    path = path_in(wanted.path)
    await workspace.sandbox.make_directory(path)
    answer = _Changed(workspace=workspace.handle, path=str(path))
    return Said(answer=answer, text=f"{path}/ is there")


async def _remove_path(wanted: _Path, workspace: Workspace, on_output: OnOutput) -> Said:
    del on_output
    path = path_in(wanted.path)
    await workspace.sandbox.remove_path(path)
    answer = _Changed(workspace=workspace.handle, path=str(path))
    return Said(answer=answer, text=f"removed {path}")


_DIRECTORY_TOOLS: Final[tuple[AnyTool, ...]] = (
    ServedTool(
        name="sandbox_list_directory",
        title="List a directory",
        description="List files and directories of the workspace. Links are named, not followed.",
        arguments=_List,
        answer=_Listing,
        call=_list,
        reads_only=True,
    ),
    ServedTool(
        name="sandbox_make_directory",
        title="Make a directory",
        description="Make a directory of the workspace, and those above it.",
        arguments=_Path,
        answer=_Changed,
        call=_make_directory,
        repeatable=True,
    ),
    ServedTool(
        name="sandbox_remove_path",
        title="Remove a file or a directory",
        description="Remove a file or a directory of the workspace, with all that is in it.",
        arguments=_Path,
        answer=_Changed,
        call=_remove_path,
        destroys=True,
    ),
)
