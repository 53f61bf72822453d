"""Tools of the executor server."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.errors import SandboxUnavailableError, ToolError
from assay.contracts.execution import CellResult, Command, ExecutionResult, PythonCode, RichOutput
from assay.contracts.ports import OnOutput
from assay.mcp.server import (
    Answer,
    AnyTool,
    Image,
    Said,
    ServedTool,
    WorkspaceArguments,
    path_in,
)
from assay.mcp.workspaces import Workspace
from assay.text.formatting import cut_middle, strip_control_codes
from assay.tools.run import describe_end

_MOST_CHARS: Final = 20_000
"""Per stream in the text of an answer; the structured values have all stored output."""
_PICTURES: Final = ("image/png", "image/jpeg")
_MOST_PICTURES: Final = 8


class _RunCommand(WorkspaceArguments):
    command: str = Field(default="", description="A shell command, run by bash.")
    argv: list[str] = Field(
        default_factory=list[str],
        max_length=4096,
        description="In place of `command`: a program and its arguments, without a shell.",
    )
    stdin: str = Field(default="", description="What it reads.")
    cwd: str = Field(default=".", description="Directory to run in, from the workspace root.")
    env: dict[str, str] = Field(default_factory=dict[str, str], description="Variables to set.")
    timeout_s: float | None = Field(
        default=None, gt=0, description="Seconds after which the program is stopped."
    )


class _RunPython(WorkspaceArguments):
    code: str = Field(min_length=1, description="Python code; print what you want to see.")
    stdin: str = Field(default="", description="What it reads; not for a stateful run.")
    timeout_s: float | None = Field(
        default=None, gt=0, description="Seconds after which the program is stopped."
    )
    stateful: bool = Field(
        default=False,
        description=(
            "Run it as a cell of this workspace's interpreter: variables stay for later stateful "
            "runs, the value of the last expression is shown, and figures come back as images."
        ),
    )


class _Denied(BaseModel):
    model_config = ConfigDict(frozen=True)

    host: str
    port: int | None
    why: str


class _Run(Answer):
    exit_code: int | None = Field(description="None when a signal or a limit ended it.")
    signal: int | None
    reason: str = Field(description="`completed`, or what ended it, such as `timed_out`.")
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
    duration_s: float
    cpu_s: float
    peak_memory_bytes: int
    limits_hit: list[str]
    denials: list[_Denied] = Field(description="What the network policy kept from it.")
    backend: str
    isolation: str


class _Raised(BaseModel):
    model_config = ConfigDict(frozen=True)

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


def program_tools(*, longest_s: float) -> tuple[AnyTool, ...]:
    """Return the tools of the executor server, with this maximum duration of a run."""
    return (
        ServedTool(
            name="sandbox_run_command",
            title="Run a command",
            description=(
                "Run a shell command, or a program with its arguments, in the workspace. "
                "Nothing it starts outlives it."
            ),
            arguments=_RunCommand,
            answer=_Run,
            call=_command_runner(longest_s),
            destroys=True,
        ),
        ServedTool(
            name="sandbox_run_python",
            title="Run Python",
            description=(
                "Run Python code in the workspace: in a fresh interpreter, or with `stateful` in "
                "one that remembers."
            ),
            arguments=_RunPython,
            answer=_PythonRun,
            call=_python_runner(longest_s),
            destroys=True,
        ),
    )


def _command_runner(
    longest_s: float,
) -> Callable[[_RunCommand, Workspace, OnOutput], Awaitable[Said]]:
    async def run(wanted: _RunCommand, workspace: Workspace, on_output: OnOutput) -> Said:
        if bool(wanted.command.strip()) == bool(wanted.argv):
            raise ToolError("give either `command` or `argv`")
        program = Command(
            argv=tuple(wanted.argv) or ("bash", "-c", wanted.command),
            stdin=wanted.stdin.encode(),
            env=wanted.env,
            cwd=path_in(wanted.cwd),
            timeout_s=min(wanted.timeout_s or longest_s, longest_s),
        )
        result = await workspace.sandbox.run(program, on_output=on_output)
        answer = _Run(**_run_fields(workspace, result))
        return Said(answer=answer, text=_describe(result))

    return run


def _python_runner(
    longest_s: float,
) -> Callable[[_RunPython, Workspace, OnOutput], Awaitable[Said]]:
    async def run(wanted: _RunPython, workspace: Workspace, on_output: OnOutput) -> Said:
        timeout_s = min(wanted.timeout_s or longest_s, longest_s)
        if wanted.stateful:
            return await _run_cell(wanted.code, timeout_s, workspace, on_output)
        program = PythonCode(
            source=wanted.code.encode(), stdin=wanted.stdin.encode(), timeout_s=timeout_s
        )
        result = await workspace.sandbox.run(program, on_output=on_output)
        answer = _PythonRun(**_run_fields(workspace, result))
        return Said(answer=answer, text=_describe(result))

    return run


async def _run_cell(code: str, timeout_s: float, workspace: Workspace, on_output: OnOutput) -> Said:
    interpreter = await workspace.interpreter()
    try:
        cell = await interpreter.run_cell(code, timeout_s=timeout_s, on_output=on_output)
    except SandboxUnavailableError as error:
        # The files still exist; only the variables are lost.
        workspace.forget_interpreter()
        raise ToolError(f"the interpreter is gone and its variables with it: {error}") from error
    images = tuple(image for output in cell.outputs for image in _pictures(output))[:_MOST_PICTURES]
    error = cell.error
    values = [output.text for output in cell.outputs if output.kind == "value"]
    answer = _PythonRun(
        **_run_fields(workspace, cell.execution),
        cell=cell.number,
        state=cell.state,
        value=values[-1] if values else None,
        error=error
        and _Raised(name=error.name, message=error.message, traceback=list(error.traceback)),
        images=len(images),
    )
    return Said(answer=answer, text=_describe_cell(cell, values), images=images)


def _pictures(output: RichOutput) -> list[Image]:
    found = [kind for kind in _PICTURES if kind in output.forms]
    return [Image(media_type=kind, data=output.forms[kind]) for kind in found[:1]]


def _run_fields(workspace: Workspace, result: ExecutionResult) -> Mapping[str, Any]:
    return {
        "workspace": workspace.handle,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason.value,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_base64": result.stdout_base64,
        "stderr_base64": result.stderr_base64,
        "truncated": result.truncated,
        "stdout_dropped_bytes": result.stdout_dropped_bytes,
        "stderr_dropped_bytes": result.stderr_dropped_bytes,
        "duration_s": round(result.duration_s, 6),
        "cpu_s": round(result.cpu_s, 6),
        "peak_memory_bytes": result.peak_memory_bytes,
        "limits_hit": list(result.limits_hit),
        "denials": [
            _Denied(host=denial.host, port=denial.port, why=denial.why) for denial in result.denials
        ],
        "backend": result.backend,
        "isolation": result.isolation.value,
    }


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
