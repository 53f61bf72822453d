"""A coding agent that does not take the model's word for it.

Importing this loads the standard library and nothing else; its functions bring in the rest when
they are first asked for.
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
from assay.contracts.goal import RunLimits, RunResult, Status
from assay.contracts.ports import Sandbox, SandboxBackend
from assay.contracts.verdict import Grade

if TYPE_CHECKING:
    from assay.api import run
    from assay.runs.workspace_sync import download, upload
    from assay.wiring import open_sandbox
else:
    # Hidden from type checkers, for whom a module with `__getattr__` has every name.
    def __getattr__(name: str) -> object:
        import importlib

        late = {
            "download": "assay.runs.workspace_sync",
            "open_sandbox": "assay.wiring",
            "run": "assay.api",
            "upload": "assay.runs.workspace_sync",
        }
        if name not in late:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(late[name]), name)


__all__ = [
    "AssayError",
    "Command",
    "ExecutionResult",
    "FileInfo",
    "Grade",
    "Isolation",
    "IsolationUnavailableError",
    "Limits",
    "OutputChunk",
    "PythonCode",
    "Reason",
    "RunLimits",
    "RunResult",
    "Sandbox",
    "SandboxBackend",
    "SandboxUnavailableError",
    "Status",
    "UsageError",
    "download",
    "open_sandbox",
    "run",
    "upload",
]
