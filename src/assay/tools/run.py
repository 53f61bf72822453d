"""Tools that run programs: shell commands, and Python in a preloaded interpreter."""

import hashlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from assay.contracts.errors import ToolError
from assay.contracts.execution import Command, ExecutionResult, Program, PythonCode, Reason
from assay.contracts.messages import ToolSpec
from assay.contracts.ports import OnOutput, Sandbox, ignore_output
from assay.contracts.workspace import project_env, project_script
from assay.text.formatting import head_and_tail, readable
from assay.tools.arguments import Arguments, build_spec, read_arguments, told_to_the_model

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


class _RunArguments(Arguments):
    command: str = Field(
        min_length=1, description="A shell command; it runs in the workspace root."
    )
    timeout_s: float = Field(
        default=120.0,
        gt=0,
        le=_LONGEST_TIMEOUT_S,
        description="Seconds after which the program is stopped.",
    )


class _PythonArguments(Arguments):
    code: str = Field(min_length=1, description="Python code; print what you want to see.")


_RUN = build_spec(
    "run",
    "Run a shell command in the workspace. Nothing it starts outlives it, and there is no network "
    "unless hosts were allowed.",
    _RunArguments,
)
_PYTHON = build_spec(
    "python", "Run Python code in the workspace, in a fresh interpreter.", _PythonArguments
)

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


@dataclass(frozen=True, slots=True)
class Run:
    """Runs a shell command."""

    @property
    def spec(self) -> ToolSpec:
        return _RUN

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        wanted = read_arguments(_RUN, _RunArguments, arguments)
        if not wanted.command.strip():
            raise ToolError("the command is empty")
        timeout_s = min(wanted.timeout_s, sandbox.limits.wall_s)
        with told_to_the_model():
            command = Command(argv=project_script(wanted.command), timeout_s=timeout_s)
        return await run_program(command, sandbox, on_output)


@dataclass(frozen=True, slots=True)
class RunPython:
    """Runs Python code, far faster than a command that starts an interpreter."""

    @property
    def spec(self) -> ToolSpec:
        return _PYTHON

    async def call(
        self,
        arguments: Mapping[str, Any],
        sandbox: Sandbox,
        *,
        on_output: OnOutput = ignore_output,
    ) -> str:
        wanted = read_arguments(_PYTHON, _PythonArguments, arguments)
        program = PythonCode(source=wanted.code.encode(), filename="code.py", env=project_env())
        return await run_program(program, sandbox, on_output)


async def run_program(program: Program, sandbox: Sandbox, on_output: OnOutput) -> str:
    """Run a program and describe the result for a model; long output is saved to a file."""
    result = await sandbox.run(program, on_output=on_output)
    stdout, stderr = readable(result.stdout).rstrip(), readable(result.stderr).rstrip()
    room = max(_LEAST_CHARS, _MOST_CHARS - len(stderr))
    short_out = head_and_tail(stdout, max_chars=room)
    short_err = head_and_tail(stderr, max_chars=max(_LEAST_CHARS, _MOST_CHARS - len(short_out)))
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
