"""Tools that run programs: shell commands, and Python in a preloaded interpreter."""

import hashlib
import signal
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from assay.contracts.errors import ToolError
from assay.contracts.execution import Command, ExecutionResult, Program, PythonCode, Reason
from assay.contracts.ports import OnOutput, Sandbox
from assay.contracts.workspace import project_env, project_script
from assay.text.formatting import cut_middle, strip_control_codes
from assay.tools.arguments import tool

_MOST_CHARS = 12_000
_LEAST_CHARS = 4000
"""The minimum for each stream, regardless of the other one's length."""
_LONGEST_TIMEOUT_S = 3600.0

# Through a program, not the file interface of the sandbox: that one writes to the workspace, whose
# files are part of the work.
_SAVE = """
import os, sys, tempfile
path = os.path.join(tempfile.gettempdir(), "assay-output", sys.argv[1])
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path, "wb") as file:
    file.write(sys.stdin.buffer.read())
print(path)
""".lstrip()


_ENDINGS: Mapping[Reason, str] = {
    Reason.TIMED_OUT: "ended because its time was up",
    Reason.CPU_TIME: "ended because it used up its processor time",
    Reason.OUT_OF_MEMORY: "ended because it used up its memory",
    Reason.TOO_MANY_PROCESSES: "ended because it started too many processes",
    Reason.DISK_FULL: "ended because the disk was full",
    Reason.OUTPUT_LIMIT: "ended because it printed too much",
    Reason.CANCELLED: "cancelled",
    Reason.COULD_NOT_START: "could not be started",
}


@tool
async def run(
    sandbox: Sandbox,
    on_output: OnOutput,
    command: Annotated[
        str,
        Field(min_length=1, description="A shell command; it runs in the workspace root."),
    ],
    timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=_LONGEST_TIMEOUT_S,
            description="Seconds after which the program is stopped.",
        ),
    ] = 120.0,
) -> str:
    """Run a shell command in the workspace.

    Nothing it starts outlives it, and there is no network unless hosts were allowed.
    """
    if not command.strip():
        raise ToolError("the command is empty")
    timeout_s = min(timeout_s, sandbox.limits.wall_s)
    program = Command(argv=project_script(command), timeout_s=timeout_s)
    return await run_program(program, sandbox, on_output)


# A preloaded interpreter is far faster than a command that starts one.
@tool
async def python(
    sandbox: Sandbox,
    on_output: OnOutput,
    code: Annotated[
        str, Field(min_length=1, description="Python code; print what you want to see.")
    ],
) -> str:
    """Run Python code in the workspace, in a fresh interpreter."""
    program = PythonCode(source=code.encode(), filename="code.py", env=project_env())
    return await run_program(program, sandbox, on_output)


async def run_program(program: Program, sandbox: Sandbox, on_output: OnOutput) -> str:
    """Run a program and describe the result for a model; long output is saved to a file."""
    result = await sandbox.run(program, on_output=on_output)
    stdout = strip_control_codes(result.stdout).rstrip()
    stderr = strip_control_codes(result.stderr).rstrip()
    room = max(_LEAST_CHARS, _MOST_CHARS - len(stderr))
    short_out = cut_middle(stdout, max_chars=room)
    short_err = cut_middle(stderr, max_chars=max(_LEAST_CHARS, _MOST_CHARS - len(short_out)))
    parts = [describe_end(result)]
    parts += [f"stdout:\n{short_out}"] if short_out else []
    parts += [f"stderr:\n{short_err}"] if short_err else []
    if (short_out, short_err) != (stdout, stderr):
        parts.append(await _save(stdout, stderr, sandbox))
    if result.denials:
        parts.append(f"Not allowed by the network policy: {', '.join(map(str, result.denials))}")
    if result.truncated:
        dropped = result.stdout_dropped_bytes + result.stderr_dropped_bytes
        parts.append(f"It printed {dropped} bytes more, which were not kept.")
    return "\n".join(parts)


def describe_end(result: ExecutionResult) -> str:
    """Describe the end of an execution in a few words."""
    took = f"after {result.duration_s:.1f} s"
    if result.reason is Reason.COMPLETED:
        return f"exit code {result.exit_code} {took}"
    if result.reason is Reason.SIGNALLED:
        return f"ended by {_signal_name(result.signal)} {took}"
    return f"{_ENDINGS[result.reason]}, {took}"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


async def _save(stdout: str, stderr: str, sandbox: Sandbox) -> str:
    """Save the full output where programs can read it, and return where that is."""
    streams = (("stdout", stdout), ("stderr", stderr))
    whole = "".join(f"{name}:\n{text}\n" for name, text in streams if text).encode()
    name = f"{hashlib.sha256(whole).hexdigest()[:12]}.txt"
    saving = PythonCode(source=_SAVE.encode(), filename="save.py", args=(name,), stdin=whole)
    result = await sandbox.run(saving)
    if not result.succeeded:
        return "The full output could not be kept."
    lines, path = whole.count(b"\n"), result.stdout.strip()
    return f"The full output ({lines} lines) is in {path}; look at parts of it by a command."
