"""A coding agent that hands over only code it has proven.

Importing this loads the standard library and nothing else; `open_sandbox` brings in the rest when
it is first asked for.
"""

from typing import TYPE_CHECKING

from assay.contracts.errors import (
    AssayError,
    IsolationUnavailableError,
    SandboxUnavailableError,
    UsageError,
)
from assay.contracts.execution import (
    Command,
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    OutputChunk,
    PythonCode,
    Reason,
)
from assay.contracts.ports import Sandbox, SandboxBackend

if TYPE_CHECKING:
    from assay.wiring import open_sandbox
else:
    # Hidden from type checkers, for whom a module with `__getattr__` has every name.
    def __getattr__(name: str) -> object:
        if name != "open_sandbox":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from assay.wiring import open_sandbox  # noqa: PLC0415 - loads third-party code

        return open_sandbox


__all__ = [
    "AssayError",
    "Command",
    "ExecutionResult",
    "FileInfo",
    "Isolation",
    "IsolationUnavailableError",
    "Limits",
    "OutputChunk",
    "PythonCode",
    "Reason",
    "Sandbox",
    "SandboxBackend",
    "SandboxUnavailableError",
    "UsageError",
    "open_sandbox",
]
