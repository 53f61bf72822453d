"""What runs in a sandbox, within which limits, and what comes back."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Literal

from assay.contracts.errors import UsageError

WORKSPACE = PurePosixPath("/app")
"""Where a program finds the workspace in every backend that has a file system of its own."""


class Isolation(StrEnum):
    """How much stands between a program and the host, from least to most."""

    NONE = "none"
    RESTRICTED = "restricted"
    """Landlock, seccomp and resource limits: kernel, process table and names are the host's."""
    ISOLATED = "isolated"
    """Own namespaces, own root, seccomp, limits: the host's kernel is shared, nothing else is."""
    KERNEL = "kernel"
    """A kernel of its own in user space (gVisor)."""
    MACHINE = "machine"
    """A virtual machine of its own."""

    @property
    def rank(self) -> int:
        return list(Isolation).index(self)

    def satisfies(self, wanted: "Isolation") -> bool:
        return self.rank >= wanted.rank


class Reason(StrEnum):
    """Why an execution ended. Exactly one; a limit wins over the exit it caused."""

    COMPLETED = "completed"
    """The program ended by itself, with whatever exit code."""
    SIGNALLED = "signalled"
    """A signal ended it that no limit of ours sent: a crash, or its own doing."""
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
"""More than any machine has of anything, and small enough for every kernel interface."""

LimitName = Literal["wall_s", "cpu_s", "memory_mb", "processes", "disk_mb", "output_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a sandbox may use up. Every number is a promise the backend must keep.

    Raises:
        UsageError: If a number is not finite and positive.
    """

    wall_s: float = 60.0
    """Per execution, from its start; time spent in a queue does not count."""
    cpu_s: float = 60.0
    """Per execution, summed over all its processes."""
    memory_mb: int = 512
    """Per execution, all its processes together."""
    processes: int = 64
    """Per execution, threads included."""
    disk_mb: int = 256
    """Per sandbox: workspace and temporary files together."""
    open_files: int = 256
    output_bytes: int = 1 << 20
    """Kept per stream and execution; the rest is counted and dropped, and far more ends it."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            # Compared from both sides, which also leaves out what is not a number.
            if not 0 < value <= _LARGEST_LIMIT:
                raise UsageError(
                    f"{limit.name} must be above 0 and at most {_LARGEST_LIMIT},"
                    f" not {str(value)[:40]}",
                    hint=f"leave {limit.name} out to get the default, {limit.default}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is given beside an empty workspace. By default nothing.

    Raises:
        UsageError: If a host or a package is not written as one.
    """

    packages: tuple[str, ...] = ()
    """Python packages as pip writes them, `requests==2.32.*`: wheels only, fetched outside."""
    hosts: tuple[str, ...] = ()
    """Hosts that programs may reach, `example.org`, `*.example.org`, `example.org:8443`; without a
    port, 80 and 443. Everything else is denied, and each denial is in the result."""

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
    """A connection or a name that a program asked for and did not get."""

    host: str
    """As the program named it: a name, or an address."""
    port: int | None
    """None when only the name was asked for."""
    why: str

    def __str__(self) -> str:
        place = f"[{self.host}]" if ":" in self.host else self.host
        return f"{place}{'' if self.port is None else f':{self.port}'} ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to run. Never a shell string: shells are asked for by name."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the sandbox's own small environment; nothing of the host's is there."""
    cwd: PurePosixPath = PurePosixPath()
    """Relative to the workspace root."""
    timeout_s: float | None = None
    """Lowers the sandbox's `wall_s` for this execution."""

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise UsageError("a command needs a program name", hint='for example argv=("ls", "-l")')
        _check_strings("argv", self.argv)
        _check_request(self.env, self.cwd, self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCode:
    """Python source to run as `__main__` in the sandbox's ready-made interpreter."""

    source: bytes
    filename: str = "main.py"
    """How the source is called in tracebacks."""
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
    """Where the time of one execution went."""

    queue_s: float
    """Waiting for its turn."""
    prepare_s: float
    """Making or fetching an isolated process."""
    run_s: float
    """From handing over the program to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """How one execution went. A failing program is a result, not an error."""

    exit_code: int | None
    """None when a signal or a limit ended it; 126 or 127, as in a shell, if it could not start."""
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
    """Limits the program reached, also when it coped with them and ended well."""
    timings: Timings
    backend: str
    isolation: Isolation
    denials: tuple[BlockedConnection, ...] = ()
    """What the network policy kept from the program, each once."""

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", errors="replace")

    @property
    def stdout_base64(self) -> str | None:
        """All of stdout where `stdout` cannot show it, since it is not UTF-8; otherwise None."""
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
    """Some bytes a running program has just written."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One entry of the workspace. Symlinks are named, never followed."""

    path: PurePosixPath
    """Relative to the workspace root."""
    kind: Literal["file", "directory", "symlink", "other"]
    size_bytes: int
    executable: bool


def base64_of_binary(data: bytes) -> str | None:
    """Return bytes that are not UTF-8 in base64; None for those that are."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii")
    return None
