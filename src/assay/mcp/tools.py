"""Tools of the filesystem server and of the executor server, as typed functions.

The parameters of a function are the arguments of its tool, and the annotation of its result has the
model of the structured answer.
"""

import base64 as b64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import mcp_types as types
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from assay.contracts.errors import SandboxUnavailableError, ToolError
from assay.contracts.execution import (
    WORKSPACE,
    CellResult,
    Command,
    ExecutionResult,
    PythonCode,
    RichOutput,
)
from assay.contracts.messages import ToolSpec
from assay.contracts.ports import OnOutput
from assay.mcp.workspaces import Workspace
from assay.settings.sections import McpSettings
from assay.text.formatting import cut_middle, strip_control_codes
from assay.tools.arguments import Arguments, describe_function, plain_schema
from assay.tools.run import describe_end

_MOST_ENTRIES: Final = 1000
_LONGEST_PATH: Final = 4096
_MOST_CHARS: Final = 20_000
"""Per stream in the text of an answer; the structured values have all stored output."""
_PICTURES: Final = ("image/png", "image/jpeg")
_MOST_PICTURES: Final = 8


class Answer(BaseModel):
    """Structured answer of every tool."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    workspace: str = Field(description="Give this as `workspace` to go on in the same workspace.")


AnswerT = TypeVar("AnswerT", bound=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The context of one call. A failing program is an answer; a failing call raises."""

    workspace: Workspace
    settings: McpSettings
    on_output: OnOutput
    name_workspace: bool
    """Whether the text names the workspace: many clients show a model only the text."""

    def timeout(self, asked_s: float | None) -> float:
        """Return the duration after which a program is stopped."""
        return min(asked_s or self.settings.timeout_s, self.settings.timeout_s)

    def result(
        self,
        answer: type[AnswerT],
        text: str,
        *images: types.ContentBlock,
        **values: Any,
    ) -> types.CallToolResult:
        """Build the result: values for programs, text for models, images for both."""
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text), *images]
        handle = self.workspace.handle
        if self.name_workspace:
            content.append(types.TextContent(type="text", text=f"workspace: {handle}"))
        structured = answer(workspace=handle, **values).model_dump(mode="json")
        return types.CallToolResult(content=content, structured_content=structured)


class WorkspaceArguments(Arguments):
    """Arguments of every tool."""

    workspace: str = Field(
        default="",
        max_length=100,
        description="The handle of a workspace, from an earlier answer; none the first time, "
        "`new` for one more.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """One tool of an MCP server."""

    call: Callable[..., Awaitable[types.CallToolResult]]
    """Receives the `ToolCall` and the arguments except `workspace`."""
    spec: ToolSpec
    arguments: type[WorkspaceArguments]
    listed: types.Tool


def _tool(
    title: str, *, reads: bool = False, destroys: bool = False, repeatable: bool = False
) -> Callable[[Callable[..., Awaitable[types.CallToolResult]]], ServedTool]:
    """Make a tool of a function.

    `reads` marks a tool without an effect, `destroys` one that can lose data, and `repeatable` one
    whose repeated calls have no further effect.
    """

    def build(function: Callable[..., Awaitable[types.CallToolResult]]) -> ServedTool:
        spec, arguments = describe_function(function, WorkspaceArguments)
        _, answer = get_args(signature(function).return_annotation)
        listed = types.Tool(
            name=spec.name,
            title=title,
            description=spec.description,
            input_schema=dict(spec.parameters),
            output_schema=plain_schema(answer),
            annotations=types.ToolAnnotations(
                title=title,
                read_only_hint=reads,
                destructive_hint=destroys,
                idempotent_hint=reads or repeatable,
                open_world_hint=False,
            ),
        )
        return ServedTool(call=function, spec=spec, arguments=arguments, listed=listed)

    return build


def _path_in(written: str) -> PurePosixPath:
    """Return a path from the workspace root; the sandbox checks that it stays inside."""
    path = PurePosixPath(written)
    return path.relative_to(WORKSPACE) if path.is_relative_to(WORKSPACE) else path


_Path = Annotated[
    str, Field(min_length=1, max_length=_LONGEST_PATH, description="Path from the workspace root.")
]
_Timeout = Annotated[
    float | None, Field(gt=0, description="Seconds after which the program is stopped.")
]


class _FileContent(Answer):
    path: str
    size_bytes: int
    encoding: Literal["utf-8", "base64"]
    content: str


@_tool("Read a file", reads=True)
async def sandbox_read_file(
    call: ToolCall,
    *,
    path: _Path,
    base64: Annotated[
        bool, Field(description="Give the content as base64; needed for what is not text.")
    ] = False,
) -> Annotated[types.CallToolResult, _FileContent]:
    """Read a file of the workspace."""
    target = _path_in(path)
    content = await call.workspace.sandbox.read_file(target, max_bytes=call.settings.file_bytes)
    try:
        text = b64.b64encode(content).decode("ascii") if base64 else content.decode("utf-8")
    except UnicodeDecodeError:
        raise ToolError(
            f"{str(target)!r} is not text ({len(content)} bytes): ask for it with `base64` set to "
            "true"
        ) from None
    return call.result(
        _FileContent,
        text,
        path=str(target),
        size_bytes=len(content),
        encoding="base64" if base64 else "utf-8",
        content=text,
    )


class _Written(Answer):
    path: str
    size_bytes: int


@_tool("Write a file", destroys=True, repeatable=True)
async def sandbox_write_file(
    call: ToolCall,
    *,
    path: _Path,
    content: Annotated[str, Field(description="The whole new content.")],
    base64: Annotated[
        bool, Field(description="The content is base64, for what is not text.")
    ] = False,
    executable: Annotated[bool, Field(description="Whether the file can be run.")] = False,
) -> Annotated[types.CallToolResult, _Written]:
    """Create or replace a file of the workspace, and directories on the way."""
    target, most = _path_in(path), call.settings.file_bytes
    try:
        written = b64.b64decode(content, validate=True) if base64 else content.encode("utf-8")
    except (binascii.Error, ValueError) as error:
        kind = "base64" if base64 else "text"
        raise ToolError(f"the content is not {kind}: {error}") from error
    if len(written) > most:
        raise ToolError(f"{len(written)} bytes are too many for one file: {most} at most")
    await call.workspace.sandbox.write_file(target, written, executable=executable)
    text = f"wrote {len(written)} bytes to {target}"
    return call.result(_Written, text, path=str(target), size_bytes=len(written))


_Str = Annotated[str, BeforeValidator(str)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)

    path: _Str
    kind: Literal["file", "directory", "symlink", "other"]
    size_bytes: int
    executable: bool


class _Listing(Answer):
    path: str
    entries: list[_Entry]
    left_out: int = Field(description="The number of entries that are not listed.")


@_tool("List a directory", reads=True)
async def sandbox_list_directory(
    call: ToolCall,
    *,
    path: Annotated[
        str, Field(max_length=_LONGEST_PATH, description="A directory, from the root.")
    ] = ".",
    recursive: Annotated[
        bool, Field(description="Also list what is in directories below.")
    ] = False,
) -> Annotated[types.CallToolResult, _Listing]:
    """List files and directories of the workspace. Links are named, not followed."""
    target = _path_in(path)
    found = await call.workspace.sandbox.list_files(target)
    if not recursive:
        found = tuple(info for info in found if info.path.parent == target)
    shown = found[:_MOST_ENTRIES]
    left_out = len(found) - len(shown)
    lines = [
        f"{entry.path}/"
        if entry.kind == "directory"
        else f"{entry.path} ({entry.size_bytes} bytes)"
        for entry in shown
    ]
    lines += [f"[... {left_out} more ...]"] if left_out else []
    text = "\n".join(lines) or f"{target} is empty"
    return call.result(_Listing, text, path=str(target), entries=shown, left_out=left_out)


class _Changed(Answer):
    path: str


@_tool("Make a directory", repeatable=True)
async def sandbox_make_directory(
    call: ToolCall, path: _Path
) -> Annotated[types.CallToolResult, _Changed]:
    """Make a directory of the workspace, and those above it."""
    target = _path_in(path)
    await call.workspace.sandbox.make_directory(target)
    return call.result(_Changed, f"{target}/ is there", path=str(target))


@_tool("Remove a file or a directory", destroys=True)
async def sandbox_remove_path(
    call: ToolCall, path: _Path
) -> Annotated[types.CallToolResult, _Changed]:
    """Remove a file or a directory of the workspace, with all that is in it."""
    target = _path_in(path)
    await call.workspace.sandbox.remove_path(target)
    return call.result(_Changed, f"removed {target}", path=str(target))


def _value_of(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


_Name = Annotated[str, BeforeValidator(_value_of)]
_Seconds = Annotated[float, BeforeValidator(lambda value: round(value, 6))]


class _Denied(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)

    host: str
    port: int | None
    why: str


class _Run(Answer):
    exit_code: int | None = Field(description="None when a signal or a limit ended it.")
    signal: int | None
    reason: _Name = Field(description="`completed`, or what ended it, such as `timed_out`.")
    stdout: str
    stderr: str
    stdout_base64: str | None = Field(
        default=None, description="All of stdout, where it is not UTF-8; None otherwise."
    )
    stderr_base64: str | None = Field(
        default=None, description="All of stderr, where it is not UTF-8; None otherwise."
    )
    truncated: bool = Field(description="Whether there was more output than was kept.")
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int
    duration_s: _Seconds
    cpu_s: _Seconds
    peak_memory_bytes: int
    limits_hit: list[str]
    denials: list[_Denied] = Field(description="What the network policy kept from it.")
    backend: str
    isolation: _Name


_NO_VARIABLES: Final[Mapping[str, str]] = {}
_MEASURED: Final = tuple(name for name in _Run.model_fields if name != "workspace")


def _measured(result: ExecutionResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in _MEASURED}


@_tool("Run a command", destroys=True)
async def sandbox_run_command(
    call: ToolCall,
    *,
    command: Annotated[str, Field(description="A shell command, run by bash.")] = "",
    argv: Annotated[
        Sequence[str],
        Field(
            max_length=4096,
            description="In place of `command`: a program and its arguments, without a shell.",
        ),
    ] = (),
    stdin: Annotated[str, Field(description="What it reads.")] = "",
    cwd: Annotated[str, Field(description="Directory to run in, from the workspace root.")] = ".",
    env: Annotated[Mapping[str, str], Field(description="Variables to set.")] = _NO_VARIABLES,
    timeout_s: _Timeout = None,
) -> Annotated[types.CallToolResult, _Run]:
    """Run a shell command, or a program with its arguments, in the workspace.

    Nothing it starts outlives it.
    """
    if bool(command.strip()) == bool(argv):
        raise ToolError("give either `command` or `argv`")
    program = Command(
        argv=tuple(argv) or ("bash", "-c", command),
        stdin=stdin.encode(),
        env=env,
        cwd=_path_in(cwd),
        timeout_s=call.timeout(timeout_s),
    )
    result = await call.workspace.sandbox.run(program, on_output=call.on_output)
    return call.result(_Run, _describe(result), **_measured(result))


class _Raised(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)

    name: str
    message: str
    traceback: list[str]


class _PythonRun(_Run):
    cell: int | None = Field(default=None, description="Number of the cell of a stateful run.")
    state: Literal["kept", "rolled_back"] | None = Field(
        default=None, description="Of a stateful run: whether later cells see what it did."
    )
    value: str | None = Field(default=None, description="Of the last expression.")
    error: _Raised | None = Field(default=None, description="The exception that ended a cell.")
    images: int = Field(default=0, description="How many images are in the content.")


@_tool("Run Python", destroys=True)
async def sandbox_run_python(
    call: ToolCall,
    *,
    code: Annotated[
        str, Field(min_length=1, description="Python code; print what you want to see.")
    ],
    stdin: Annotated[str, Field(description="What it reads; not for a stateful run.")] = "",
    timeout_s: _Timeout = None,
    stateful: Annotated[
        bool,
        Field(
            description="Run it as a cell of this workspace's interpreter: variables stay for "
            "later stateful runs, the value of the last expression is shown, and figures come "
            "back as images."
        ),
    ] = False,
) -> Annotated[types.CallToolResult, _PythonRun]:
    """Run Python code in the workspace: in a fresh interpreter, or with `stateful` in one that \
remembers.
    """  # noqa: D205 - one sentence for the model
    if not stateful:
        program = PythonCode(
            source=code.encode(), stdin=stdin.encode(), timeout_s=call.timeout(timeout_s)
        )
        result = await call.workspace.sandbox.run(program, on_output=call.on_output)
        return call.result(_PythonRun, _describe(result), **_measured(result))
    interpreter = await call.workspace.interpreter()
    try:
        cell = await interpreter.run_cell(
            code, timeout_s=call.timeout(timeout_s), on_output=call.on_output
        )
    except SandboxUnavailableError as error:
        # The files still exist; only the variables are lost.
        await call.workspace.close_interpreter()
        raise ToolError(f"the interpreter is gone and its variables with it: {error}") from error
    images = [image for output in cell.outputs for image in _pictures(output)][:_MOST_PICTURES]
    values = [output.text for output in cell.outputs if output.kind == "value"]
    return call.result(
        _PythonRun,
        _describe_cell(cell, values),
        *images,
        **_measured(cell.execution),
        cell=cell.number,
        state=cell.state,
        value=values[-1] if values else None,
        error=cell.error,
        images=len(images),
    )


def _pictures(output: RichOutput) -> list[types.ImageContent]:
    """Return the first picture among the forms of an output."""
    return [
        types.ImageContent(
            type="image", data=b64.b64encode(output.forms[kind]).decode("ascii"), mime_type=kind
        )
        for kind in _PICTURES
        if kind in output.forms
    ][:1]


def _describe(result: ExecutionResult) -> str:
    parts = [describe_end(result)]
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if short := cut_middle(strip_control_codes(text).rstrip(), max_chars=_MOST_CHARS):
            parts.append(f"{name}:\n{short}")
    if result.truncated:
        dropped = result.stdout_dropped_bytes + result.stderr_dropped_bytes
        parts.append(f"It printed {dropped} bytes more, which were not kept.")
    parts += [f"The network policy denied {each.host}: {each.why}" for each in result.denials]
    return "\n".join(parts)


def _describe_cell(cell: CellResult, values: list[str]) -> str:
    parts = [_describe(cell.execution)]
    parts += [f"value:\n{cut_middle(value, max_chars=_MOST_CHARS)}" for value in values[-1:]]
    if cell.error is not None:
        parts += ["\n".join(cell.error.traceback)]
    if cell.state == "rolled_back":
        parts.append("The variables are as they were before this cell.")
    return "\n".join(parts)


FILE_TOOLS: Final = (
    sandbox_read_file,
    sandbox_write_file,
    sandbox_list_directory,
    sandbox_make_directory,
    sandbox_remove_path,
)
PROGRAM_TOOLS: Final = (sandbox_run_command, sandbox_run_python)
