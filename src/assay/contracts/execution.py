"""Executions: programs for a sandbox, their limits and their results.

Includes the results of cells that a stateful interpreter runs.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Literal

from assay.contracts.errors import UsageError
from assay.contracts.workspace import WorkspaceLayer

WORKSPACE = PurePosixPath("/app")
"""Path of the workspace in every backend with its own file system."""


class Isolation(StrEnum):
    """Isolation between a program and the host, from least to most."""

    NONE = "none"
    RESTRICTED = "restricted"
    """Landlock, seccomp and limits; kernel, process table and names are those of the host."""
    ISOLATED = "isolated"
    """Own namespaces, own root, seccomp and limits; only the kernel is shared with the host."""
    KERNEL = "kernel"
    """Own kernel in user space (gVisor)."""
    MACHINE = "machine"
    """Own virtual machine."""

    @property
    def rank(self) -> int:
        return list(Isolation).index(self)

    def satisfies(self, wanted: "Isolation") -> bool:
        return self.rank >= wanted.rank


class Reason(StrEnum):
    """Reason why an execution ended. Exactly one; a limit wins over the exit it caused."""

    COMPLETED = "completed"
    """The program exited by itself, with any exit code."""
    SIGNALLED = "signalled"
    """A signal killed it that no limit of Assay sent: a crash, or the program's own signal."""
    COULD_NOT_START = "could_not_start"
    """No such program, not executable, or no such working directory."""
    TIMED_OUT = "timed_out"
    CPU_TIME = "cpu_time"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    DISK_FULL = "disk_full"
    OUTPUT_LIMIT = "output_limit"
    CANCELLED = "cancelled"


_LARGEST_LIMIT = 10**12
"""Above the capacity of any machine, and small enough for every kernel interface."""

LimitName = Literal["wall_s", "cpu_s", "memory_mb", "processes", "disk_mb", "output_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a sandbox and its executions. The backend must enforce every number.

    Raises:
        UsageError: If a number is not finite and positive.
    """

    wall_s: float = 60.0
    """Per execution, from its start; time in a queue does not count."""
    cpu_s: float = 60.0
    """Per execution, summed over all its processes."""
    memory_mb: int = 512
    """Per execution, for all its processes together."""
    processes: int = 64
    """Per execution, including threads."""
    disk_mb: int = 256
    """Per sandbox, for workspace and temporary files together."""
    open_files: int = 256
    output_bytes: int = 1 << 20
    """Stored per stream and execution; the rest is only counted. Far more ends the program."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            # Two comparisons also reject NaN.
            if not 0 < value <= _LARGEST_LIMIT:
                raise UsageError(
                    f"{limit.name} must be above 0 and at most {_LARGEST_LIMIT},"
                    f" not {str(value)[:40]}",
                    hint=f"leave {limit.name} out to get the default, {limit.default}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class EditableProject:
    """The project in the workspace, which programs find as an editable install would show it.

    Raises:
        UsageError: If a field has an invalid form.
    """

    name: str
    """The canonical name of its distribution."""
    version: str
    requires: tuple[str, ...] = ()
    """Requirements of its metadata; installing them is not implied."""
    entry_points: str = ""
    """The text of `entry_points.txt`."""
    folders: tuple[str, ...] = ()
    """The folders from which it is imported, relative to the workspace; "" is the workspace."""

    def __post_init__(self) -> None:
        if not _DISTRIBUTION.fullmatch(self.name) or not _VERSION.fullmatch(self.version):
            raise UsageError(f"not a project: {self.name[:100]!r} {self.version[:100]!r}")
        if any("\n" in line or "\r" in line for line in self.requires):
            raise UsageError(f"a requirement of {self.name!r} has a line break")
        if len(self.entry_points) > _LONGEST_ENTRY_POINTS:
            raise UsageError(f"{self.name!r} has too many entry points")
        for folder in self.folders:
            if folder.startswith("/") or ".." in folder.split("/") or ":" in folder:
                raise UsageError(f"not a folder of the workspace: {folder!r}")


_DISTRIBUTION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSION = re.compile(r"[0-9A-Za-z.!+]{1,100}")
_LONGEST_ENTRY_POINTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Packages, hosts, a project and the first files of a sandbox. Default: none.

    Raises:
        UsageError: If a host or a package has an invalid form.
    """

    packages: tuple[str, ...] = ()
    """Python packages, `requests==2.32.*`: wheels only, downloaded outside the sandbox."""
    hosts: tuple[str, ...] = ()
    """Hosts that programs may reach: `example.org`, `*.example.org`, `example.org:8443`; without a
    port, 80 and 443. Everything else is denied, and the result lists it."""
    layer: WorkspaceLayer | None = None
    """The files that the workspace starts with."""
    project: EditableProject | None = None
    """The project in the workspace; None: programs see it as files only."""

    def __post_init__(self) -> None:
        _check_strings("packages", self.packages)
        for package in self.packages:
            if not package.strip() or package.strip().startswith("-"):
                raise UsageError(
                    f"not a package: {package!r}",
                    hint="give a name and perhaps a version, as in requests==2.32.*",
                )
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise UsageError(
                    f"not a host: {host!r}",
                    hint="give a name without a scheme or a path, as in example.org:443",
                )


_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedConnection:
    """A connection or name lookup that the egress proxy blocked."""

    host: str
    """As the program requested it: a host name or an address."""
    port: int | None
    """None if only the name was looked up."""
    why: str

    def __str__(self) -> str:
        place = f"[{self.host}]" if ":" in self.host else self.host
        return f"{place}{'' if self.port is None else f':{self.port}'} ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to run. Never a shell string: name the shell as the program if you need one."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the sandbox's small environment, which contains nothing of the host's."""
    cwd: PurePosixPath = PurePosixPath()
    """Relative to the workspace root."""
    timeout_s: float | None = None
    """Reduces the sandbox's `wall_s` for this execution."""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise UsageError("a command needs a program name", hint='for example argv=("ls", "-l")')
        _check_strings("argv", self.argv)
        _check_request(self.env, self.cwd, self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCode:
    """Python source to run as `__main__` in a preloaded process of the sandbox."""

    source: bytes
    filename: str = "main.py"
    """File name in tracebacks."""
    args: tuple[str, ...] = ()
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: PurePosixPath = PurePosixPath()
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        _check_strings("args", (self.filename, *self.args))
        _check_request(self.env, self.cwd, self.timeout_s)


Program = Command | PythonCode


def _check_strings(name: str, values: tuple[str, ...]) -> None:
    for value in values:
        if "\0" in value:
            raise UsageError(f"{name} must not contain a NUL character: {value!r}")
        try:
            value.encode("utf-8", errors="surrogateescape")
        except UnicodeEncodeError as error:
            raise UsageError(f"{name} cannot be written as bytes: {value!r}") from error


def _check_request(env: Mapping[str, str], cwd: PurePosixPath, timeout_s: float | None) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"not an environment variable: {name!r}")
        _check_strings("env", (name, value))
    _check_strings("cwd", (str(cwd),))
    if cwd.is_absolute() or ".." in cwd.parts:
        raise UsageError(
            f"the working directory {str(cwd)!r} is not inside the workspace",
            hint="give a path relative to the workspace root",
        )
    if timeout_s is not None and not 0 < timeout_s <= _LARGEST_LIMIT:
        raise UsageError(f"timeout_s must be a positive number, not {timeout_s!r}")


DEFAULT_SPEC = SandboxSpec()
"""No packages, no network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations of the phases of one execution."""

    queue_s: float
    """Time in the queue."""
    prepare_s: float
    """Time to create or obtain an isolated process."""
    run_s: float
    """Time from the program's handover to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """The result of one execution. A failing program is a result, not an error."""

    exit_code: int | None
    """None after a signal or limit; 126 or 127, as in a shell, if the program could not start."""
    signal: int | None
    reason: Reason
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int
    duration_s: float
    cpu_s: float
    peak_memory_bytes: int
    limits_hit: tuple[LimitName, ...]
    """Limits that the program reached, even if it continued and exited normally."""
    timings: Timings
    backend: str
    isolation: Isolation
    denials: tuple[BlockedConnection, ...] = ()
    """Connections and names that the egress proxy blocked, each once."""

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", errors="replace")

    @property
    def stdout_base64(self) -> str | None:
        """All of stdout if it is not UTF-8, which `stdout` cannot show; otherwise None."""
        return base64_of_binary(self.stdout_bytes)

    @property
    def stderr_base64(self) -> str | None:
        return base64_of_binary(self.stderr_bytes)

    @property
    def truncated(self) -> bool:
        return bool(self.stdout_dropped_bytes or self.stderr_dropped_bytes)

    @property
    def timed_out(self) -> bool:
        return self.reason is Reason.TIMED_OUT

    @property
    def succeeded(self) -> bool:
        return self.reason is Reason.COMPLETED and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """Output bytes that a running program has just written."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One entry of the workspace. Symlinks are listed, never followed."""

    path: PurePosixPath
    """Relative to the workspace root."""
    kind: Literal["file", "directory", "symlink", "other"]
    size_bytes: int
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceChanges:
    """The difference between a workspace and the layer that it started with."""

    written: tuple[FileInfo, ...]
    """Everything that the layer does not have, or that has another kind, content, target or
    executable bit there; sorted by path. Symlinks are listed, never followed."""
    removed: tuple[PurePosixPath, ...]
    """Paths of the layer that no longer exist, sorted. A removed directory stands for everything
    below it; so does a directory that something else has replaced, which `written` lists."""


def base64_of_binary(data: bytes) -> str | None:
    """Return bytes that are not UTF-8 as base64; None for those that are."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RichOutput:
    """One rich output of a cell, in every media type that it was given in."""

    kind: Literal["value", "display"]
    """The value of the last expression, or output of `display(…)` and figures during the cell."""
    forms: Mapping[str, bytes]
    """By media type: a value always has `text/plain`, tables have `text/html`, figures `image/png`;
    also `application/json`. Untrusted, also if the type looks safe."""
    dropped: tuple[str, ...] = ()
    """Media types that were omitted because they were too large."""

    @property
    def text(self) -> str:
        return self.forms.get("text/plain", b"").decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellError:
    """The exception that ended a cell, for the author of the cell."""

    name: str
    message: str
    traceback: tuple[str, ...]
    """Lines of the traceback: only the frames of cells, with the source of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The result of one cell."""

    number: int
    """Number of the cell in the session, from 1."""
    execution: ExecutionResult
    """Streams, reason and measurements of this cell alone; `exit_code` is 1 after an exception."""
    outputs: tuple[RichOutput, ...]
    error: CellError | None
    state: Literal["kept", "rolled_back"]
    """`kept`: later cells see this cell's effects, also if it raised. `rolled_back`: it was killed
    or crashed, and variables have the values from before it. Files are not restored."""

    @property
    def succeeded(self) -> bool:
        return self.error is None and self.execution.succeeded
