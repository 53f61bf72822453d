"""A sandbox that runs nothing: files in a dictionary, commands answered by a function."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from assay.contracts.errors import (
    FileTooLargeError,
    NotARegularFileError,
    PathOutsideWorkspaceError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)
from assay.contracts.execution import (
    DEFAULT_SPEC,
    CellResult,
    ExecutionResult,
    FileInfo,
    Isolation,
    Limits,
    OutputChunk,
    Program,
    PythonCode,
    Reason,
    SandboxSpec,
    Timings,
    WorkspaceChanges,
)
from assay.contracts.ports import OnOutput, ignore_output
from assay.contracts.workspace import WorkspaceLayer
from assay.sandbox.layer_copy import compare_with_layer, fill_from_layer

_ROOT = PurePosixPath()
_LONGEST_NAME_BYTES = 255
_LONGEST_PATH_BYTES = 4095

Answer = Callable[[Program, "FakeSandbox"], ExecutionResult]
"""Says how an execution goes; it may read and write `FakeSandbox.files`."""


def answer_with(
    stdout: str = "", *, stderr: str = "", exit_code: int = 0, reason: Reason = Reason.COMPLETED
) -> ExecutionResult:
    """Build the result of a program that printed this and ended so."""
    return ExecutionResult(
        exit_code=exit_code if reason is Reason.COMPLETED else None,
        signal=None,
        reason=reason,
        stdout_bytes=stdout.encode(),
        stderr_bytes=stderr.encode(),
        stdout_dropped_bytes=0,
        stderr_dropped_bytes=0,
        duration_s=0.0,
        cpu_s=0.0,
        peak_memory_bytes=0,
        limits_hit=(),
        timings=Timings(queue_s=0.0, prepare_s=0.0, run_s=0.0),
        backend="fake",
        isolation=Isolation.NONE,
    )


def _succeed(program: Program, sandbox: "FakeSandbox") -> ExecutionResult:
    del program, sandbox
    return answer_with()


@dataclass(frozen=True, slots=True)
class FakeFile:
    """What a fake workspace keeps of a file."""

    content: bytes
    executable: bool = False


@dataclass(slots=True, kw_only=True)
class FakeSandbox:
    """A `Sandbox` for tests of what stands on one; keeps what it was asked to run."""

    limits: Limits = field(default_factory=Limits)
    answer: Answer = _succeed
    files: dict[PurePosixPath, FakeFile] = field(default_factory=dict[PurePosixPath, FakeFile])
    directories: set[PurePosixPath] = field(default_factory=lambda: {_ROOT})
    programs: list[Program] = field(default_factory=list[Program])
    cancelled: int = 0
    closed: bool = False
    layer: WorkspaceLayer | None = None

    async def run(
        self, program: Program, *, on_output: OnOutput = ignore_output
    ) -> ExecutionResult:
        self._check_open()
        self.programs.append(program)
        result = self.answer(program, self)
        if result.stdout_bytes:
            on_output(OutputChunk(stream="stdout", data=result.stdout_bytes))
        if result.stderr_bytes:
            on_output(OutputChunk(stream="stderr", data=result.stderr_bytes))
        return result

    @asynccontextmanager
    async def open_interpreter(self) -> AsyncGenerator["FakeInterpreter"]:
        self._check_open()
        yield FakeInterpreter(self)

    async def cancel(self) -> None:
        self.cancelled += 1

    async def write_file(
        self, path: PurePosixPath, content: bytes, *, executable: bool = False
    ) -> None:
        self._check_path(path)
        if path in self.directories:
            raise NotARegularFileError(f"{str(path)!r} is a directory")
        self._check_way_to(path)
        others = sum(len(file.content) for place, file in self.files.items() if place != path)
        if others + len(content) > self.limits.disk_mb << 20:
            raise WorkspaceFullError(f"no room for the {len(content)} bytes of {str(path)!r}")
        self.directories.update(path.parents)
        self.files[path] = FakeFile(content, executable)

    async def read_file(self, path: PurePosixPath, *, max_bytes: int = 64 << 20) -> bytes:
        self._check_path(path)
        if path in self.directories:
            raise NotARegularFileError(f"{str(path)!r} is a directory")
        if path not in self.files:
            raise WorkspaceFileNotFoundError(f"there is no {str(path)!r}")
        content = self.files[path].content
        if len(content) > max_bytes:
            raise FileTooLargeError(
                f"{str(path)!r} holds more than {max_bytes} bytes",
                size_bytes=len(content),
                max_bytes=max_bytes,
            )
        return content

    async def list_files(self, path: PurePosixPath = _ROOT) -> tuple[FileInfo, ...]:
        self._check_path(path)
        if path in self.files:
            raise NotARegularFileError(f"{str(path)!r} is not a directory")
        if path not in self.directories:
            raise WorkspaceFileNotFoundError(f"there is no {str(path)!r}")
        found = [place for place in (*self.files, *self.directories) if path in place.parents]
        return tuple(self._describe(place) for place in sorted(found))

    async def make_directory(self, path: PurePosixPath) -> None:
        self._check_path(path)
        if path in self.files:
            raise NotARegularFileError(f"{str(path)!r} is a file")
        self._check_way_to(path)
        self.directories.update((path, *path.parents))

    async def remove_path(self, path: PurePosixPath) -> None:
        self._check_path(path)
        if path == _ROOT:
            raise PathOutsideWorkspaceError("the workspace itself cannot be removed")
        if path not in self.files and path not in self.directories:
            raise WorkspaceFileNotFoundError(f"there is no {str(path)!r}")
        for place in [*self.files]:
            if place == path or path in place.parents:
                del self.files[place]
        self.directories = {
            place for place in self.directories if place != path and path not in place.parents
        }

    async def changes(self) -> WorkspaceChanges:
        return await compare_with_layer(self, self.layer)

    def _describe(self, path: PurePosixPath) -> FileInfo:
        file = self.files.get(path)
        if file is None:
            return FileInfo(path=path, kind="directory", size_bytes=0, executable=False)
        size_bytes = len(file.content)
        return FileInfo(path=path, kind="file", size_bytes=size_bytes, executable=file.executable)

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxUnavailableError("the sandbox is closed", dispatch="never_started")

    def _check_path(self, path: PurePosixPath) -> None:
        self._check_open()
        if path.is_absolute() or ".." in path.parts:
            raise PathOutsideWorkspaceError(f"{str(path)!r} leads out of the workspace")
        longest = max((_size(part) for part in path.parts), default=0)
        too_long = longest > _LONGEST_NAME_BYTES or _size(str(path)) > _LONGEST_PATH_BYTES
        if "\0" in str(path) or too_long:
            raise UsageError(f"not a possible path: {str(path)!r:.80}")

    def _check_way_to(self, path: PurePosixPath) -> None:
        for parent in path.parents:
            if parent in self.files:
                raise NotARegularFileError(f"{str(parent)!r} is not a directory")


@dataclass(slots=True)
class FakeInterpreter:
    """An `Interpreter` that remembers nothing: each cell is answered as a program would be."""

    sandbox: FakeSandbox
    cells: int = 0

    async def run_cell(
        self, source: str, *, timeout_s: float | None = None, on_output: OnOutput = ignore_output
    ) -> CellResult:
        program = PythonCode(source=source.encode(), timeout_s=timeout_s)
        execution = await self.sandbox.run(program, on_output=on_output)
        self.cells += 1
        ended = execution.reason is Reason.COMPLETED
        return CellResult(
            number=self.cells,
            execution=execution,
            outputs=(),
            error=None,
            state="kept" if ended else "rolled_back",
        )

    async def interrupt(self) -> None:
        await self.sandbox.cancel()

    @asynccontextmanager
    async def branch(self) -> AsyncGenerator["FakeInterpreter"]:
        yield FakeInterpreter(self.sandbox, self.cells)


def _size(name: str) -> int:
    return len(name.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBackend:
    """A `SandboxBackend` whose sandboxes are all fake."""

    answer: Answer = _succeed
    name: str = "fake"
    isolation: Isolation = Isolation.NONE

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[FakeSandbox]:
        # Nothing runs that could use packages or hosts.
        sandbox = FakeSandbox(limits=limits, answer=self.answer, layer=equipment.layer)
        try:
            await fill_from_layer(sandbox, equipment.layer)
            yield sandbox
        finally:
            sandbox.closed = True
