"""A coding agent that does not take the model's word for it.

Importing this loads nothing else: each name brings in its module when it is first used. The types
need the standard library only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.api import run
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
    from assay.runs.workspace_sync import download, upload
    from assay.wiring import open_sandbox
else:
    # Hidden from type checkers, for whom a module with `__getattr__` has every name.
    _NAMES = {
        "assay.api": "run",
        "assay.contracts.errors": (
            "AssayError IsolationUnavailableError SandboxUnavailableError UsageError"
        ),
        "assay.contracts.execution": (
            "Command ExecutionResult FileInfo Isolation Limits OutputChunk PythonCode Reason"
        ),
        "assay.contracts.goal": "RunLimits RunResult Status",
        "assay.contracts.ports": "Sandbox SandboxBackend",
        "assay.contracts.verdict": "Grade",
        "assay.runs.workspace_sync": "download upload",
        "assay.wiring": "open_sandbox",
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)


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
