"""Shortcuts for programs, interpreters and their results in both suites."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import PurePosixPath
from textwrap import dedent
from typing import TypeVar

import anyio

from assay.contracts.errors import AssayError, MissingExtraError, PackageError, UsageError
from assay.contracts.execution import (
    DEFAULT_SPEC,
    CellResult,
    Command,
    ExecutionResult,
    Limits,
    Program,
    PythonCode,
    SandboxSpec,
)
from assay.contracts.ports import Interpreter, OnOutput, Sandbox, SandboxBackend, ignore_output

ORDINARY = Limits(wall_s=30.0, cpu_s=20.0, memory_mb=256, disk_mb=32)
"""Enough for any program without a limit test, and an end for one that hangs."""

TEN_THAT_WAIT = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(0)
for _ in range(10):
    os.wait()
"""
"""Child processes that share the program's resources and use none of their own."""

_SHOWN_CHARACTERS = 600

Refusal = TypeVar("Refusal", bound=AssayError)


def python(source: str) -> PythonCode:
    """Return indented Python source as a program."""
    return PythonCode(source=dedent(source).encode())


def shell(script: str) -> Command:
    return Command(argv=("sh", "-c", dedent(script)))


async def run_alone(
    backend: SandboxBackend,
    program: Program,
    limits: Limits = ORDINARY,
    *,
    equipment: SandboxSpec = DEFAULT_SPEC,
    on_output: OnOutput = ignore_output,
) -> ExecutionResult:
    """Run a program in a separate sandbox."""
    async with open_equipped(backend, limits, equipment) as sandbox:
        return await sandbox.run(program, on_output=on_output)


class KnownGapError(Exception):
    """This machine lacks the subject of a check; the message has the reason."""


@asynccontextmanager
async def open_equipped(
    backend: SandboxBackend, limits: Limits, equipment: SandboxSpec
) -> AsyncGenerator[Sandbox]:
    """Open a sandbox with equipment, or report that this machine cannot provide it.

    Raises:
        KnownGapError: If the backend provides no such equipment, or there is no package index.
    """
    async with AsyncExitStack() as held:
        try:
            sandbox = await held.enter_async_context(backend.open_sandbox(limits, equipment))
        except (UsageError, MissingExtraError) as error:
            if equipment == DEFAULT_SPEC:
                raise
            raise KnownGapError(str(error)) from error
        except PackageError as error:
            if not error.index_unreachable:
                raise
            raise KnownGapError(str(error)) from error
        yield sandbox


async def run_well(sandbox: Sandbox, source: str) -> str:
    """Run Python that must succeed, and return its output."""
    result = await sandbox.run(python(source))
    assert result.succeeded, describe(result)
    return result.stdout


async def refused(kind: type[Refusal], call: Awaitable[object]) -> Refusal:
    """Return the error of a rejected call; it must have this type."""
    try:
        value = await call
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, and nothing was refused: {value!r:.200}")


def describe(result: ExecutionResult) -> str:
    """Describe the result of an execution, for a failed assertion."""
    ending = f"exit code {result.exit_code}" if result.signal is None else f"signal {result.signal}"
    return (
        f"it ended with reason {result.reason.value!r}, {ending}, after {result.duration_s:.2f} s; "
        f"limits hit: {', '.join(result.limits_hit) or 'none'}; "
        f"stdout {_shown(result.stdout)}; stderr {_shown(result.stderr)}"
    )


def expect(result: ExecutionResult, **expected: object) -> None:
    """Assert attributes of a result; the message describes all of it."""
    for name, value in expected.items():
        found = getattr(result, name)
        assert found == value, f"{name} is not {value!r:.100}: {describe(result)}"


async def run_expecting(sandbox: Sandbox, program: Program, **expected: object) -> ExecutionResult:
    """Run a program whose result must have these attributes."""
    result = await sandbox.run(program)
    expect(result, **expected)
    return result


def _shown(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return repr(text)
    return f"{text[:80]!r}…{text[80 - _SHOWN_CHARACTERS :]!r} ({len(text)} characters)"


HEARTBEAT = """
import os, time
def beat_forever():
    while True:
        with open("beats", "ab") as file:
            file.write(b".")
        time.sleep(0.02)
def await_a_beat():
    while not (os.path.exists("beats") and os.path.getsize("beats")):
        time.sleep(0.01)
"""
"""Defines a process that gives a sign of life until it ends, and how to wait for the first one."""

BEAT_AND_SAY_SO = (
    HEARTBEAT
    + """
with open("beats", "ab") as file:
    file.write(b".")
print("ready", flush=True)
beat_forever()
"""
)

_BEATS = PurePosixPath("beats")
_BETWEEN_LOOKS_S = 0.1


async def beats_go_on(sandbox: Sandbox, *, within_s: float = 0.3) -> bool:
    """Return whether a process in the sandbox still writes heartbeats; one must have started.

    The absence of heartbeats counts after this time. Callers that expect one wait longer, for busy
    machines.
    """
    before = len(await sandbox.read_file(_BEATS))
    assert before, "nothing was ever beating"
    deadline = anyio.current_time() + within_s
    while anyio.current_time() < deadline:
        await anyio.sleep(_BETWEEN_LOOKS_S)
        if len(await sandbox.read_file(_BEATS)) > before:
            return True
    return False


@asynccontextmanager
async def open_session(
    backend: SandboxBackend, limits: Limits = ORDINARY
) -> AsyncGenerator[Interpreter]:
    """Open an interpreter in a separate sandbox."""
    async with backend.open_sandbox(limits) as sandbox, sandbox.open_interpreter() as interpreter:
        yield interpreter


async def run_in(interpreter: Interpreter, source: str) -> CellResult:
    """Run an indented cell that must succeed and keep its state."""
    result = await interpreter.run_cell(dedent(source))
    assert result.succeeded, describe_cell(result)
    assert result.state == "kept", describe_cell(result)
    return result


async def value_in(interpreter: Interpreter, source: str) -> str:
    """Run a cell and return the text of its value."""
    result = await run_in(interpreter, source)
    values = [output.text for output in result.outputs if output.kind == "value"]
    assert len(values) == 1, f"{len(values)} values: {describe_cell(result)}"
    return values[0]


def describe_cell(result: CellResult) -> str:
    """Describe the result of a cell, for a failed assertion."""
    error = "" if result.error is None else f"{result.error.name}: {result.error.message:.200}; "
    shown = "; ".join(f"{output.kind} {sorted(output.forms)}" for output in result.outputs)
    return (
        f"cell {result.number} was {result.state}; {error}{describe(result.execution)}; "
        f"shown: {shown or 'nothing'}"
    )


def expect_cell(result: CellResult, **expected: object) -> None:
    """Assert attributes of a cell's result, or of its execution."""
    for name, value in expected.items():
        found = getattr(result if hasattr(result, name) else result.execution, name)
        assert found == value, f"{name} is not {value!r:.100}: {describe_cell(result)}"
