"""Shortcuts for interpreters in both suites."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from textwrap import dedent

from assay.contracts.execution import Limits
from assay.contracts.interpreter import CellResult
from assay.contracts.ports import Interpreter, SandboxBackend
from assay.selftest.programs import ORDINARY, describe


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
