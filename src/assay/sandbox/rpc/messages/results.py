"""Codec of results: executions, cells and files, both ways.

Decoding checks every value and raises `MessageError` for an impossible result.
"""

from typing import Final, Literal

from assay.contracts.execution import (
    BlockedConnection,
    ExecutionResult,
    FileInfo,
    Isolation,
    LimitName,
    Reason,
    Timings,
)
from assay.contracts.interpreter import CellError, CellResult, RichOutput
from assay.sandbox.rpc.messages import executor_pb2 as pb
from assay.sandbox.rpc.messages.primitives import (
    MessageError,
    count,
    from_path,
    member,
    seconds,
    to_path,
    to_text,
)

StreamName = Literal["stdout", "stderr"]
FileKind = Literal["file", "directory", "symlink", "other"]

ISOLATIONS: Final = {
    pb.ISOLATION_NONE: Isolation.NONE,
    pb.ISOLATION_RESTRICTED: Isolation.RESTRICTED,
    pb.ISOLATION_ISOLATED: Isolation.ISOLATED,
    pb.ISOLATION_KERNEL: Isolation.KERNEL,
    pb.ISOLATION_MACHINE: Isolation.MACHINE,
}
ISOLATION_NUMBERS: Final = {value: number for number, value in ISOLATIONS.items()}
REASONS: Final = {
    pb.REASON_COMPLETED: Reason.COMPLETED,
    pb.REASON_SIGNALLED: Reason.SIGNALLED,
    pb.REASON_COULD_NOT_START: Reason.COULD_NOT_START,
    pb.REASON_TIMED_OUT: Reason.TIMED_OUT,
    pb.REASON_CPU_TIME: Reason.CPU_TIME,
    pb.REASON_OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    pb.REASON_TOO_MANY_PROCESSES: Reason.TOO_MANY_PROCESSES,
    pb.REASON_DISK_FULL: Reason.DISK_FULL,
    pb.REASON_OUTPUT_LIMIT: Reason.OUTPUT_LIMIT,
    pb.REASON_CANCELLED: Reason.CANCELLED,
}
_REASON_NUMBERS: Final = {value: number for number, value in REASONS.items()}
LIMIT_NAMES: Final[dict[pb.LimitName, LimitName]] = {
    pb.LIMIT_NAME_WALL_S: "wall_s",
    pb.LIMIT_NAME_CPU_S: "cpu_s",
    pb.LIMIT_NAME_MEMORY_MB: "memory_mb",
    pb.LIMIT_NAME_PROCESSES: "processes",
    pb.LIMIT_NAME_DISK_MB: "disk_mb",
    pb.LIMIT_NAME_OUTPUT_BYTES: "output_bytes",
}
_LIMIT_NUMBERS: Final = {value: number for number, value in LIMIT_NAMES.items()}
STREAMS: Final[dict[pb.Stream, StreamName]] = {
    pb.STREAM_STDOUT: "stdout",
    pb.STREAM_STDERR: "stderr",
}
STREAM_NUMBERS: Final = {value: number for number, value in STREAMS.items()}
FILE_KINDS: Final[dict[pb.FileKind, FileKind]] = {
    pb.FILE_KIND_FILE: "file",
    pb.FILE_KIND_DIRECTORY: "directory",
    pb.FILE_KIND_SYMLINK: "symlink",
    pb.FILE_KIND_OTHER: "other",
}
_FILE_KIND_NUMBERS: Final = {value: number for number, value in FILE_KINDS.items()}
_OUTPUT_KINDS: Final[dict[pb.RichOutputKind, Literal["value", "display"]]] = {
    pb.RICH_OUTPUT_KIND_VALUE: "value",
    pb.RICH_OUTPUT_KIND_DISPLAY: "display",
}
_OUTPUT_KIND_NUMBERS: Final = {value: number for number, value in _OUTPUT_KINDS.items()}
_CELL_STATES: Final[dict[pb.CellState, Literal["kept", "rolled_back"]]] = {
    pb.CELL_STATE_KEPT: "kept",
    pb.CELL_STATE_ROLLED_BACK: "rolled_back",
}
_CELL_STATE_NUMBERS: Final = {value: number for number, value in _CELL_STATES.items()}

_LARGEST_PORT: Final = 65535


def to_result(
    result: ExecutionResult,
    *,
    streamed_stdout: bytes | None = None,
    streamed_stderr: bytes | None = None,
) -> pb.ExecutionResult:
    """Encode a result; output that the reader already has from the stream is only counted."""
    stdout_is_known = streamed_stdout == result.stdout_bytes
    stderr_is_known = streamed_stderr == result.stderr_bytes
    return pb.ExecutionResult(
        exit_code=result.exit_code,
        signal=result.signal,
        reason=_REASON_NUMBERS[result.reason],
        stdout=b"" if stdout_is_known else result.stdout_bytes,
        stderr=b"" if stderr_is_known else result.stderr_bytes,
        stdout_streamed_bytes=len(result.stdout_bytes) if stdout_is_known else None,
        stderr_streamed_bytes=len(result.stderr_bytes) if stderr_is_known else None,
        stdout_dropped_bytes=result.stdout_dropped_bytes,
        stderr_dropped_bytes=result.stderr_dropped_bytes,
        duration_s=result.duration_s,
        cpu_s=result.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        limits_hit=[_LIMIT_NUMBERS[name] for name in result.limits_hit],
        timings=pb.Timings(
            queue_s=result.timings.queue_s,
            prepare_s=result.timings.prepare_s,
            run_s=result.timings.run_s,
        ),
        backend=to_text(result.backend),
        isolation=ISOLATION_NUMBERS[result.isolation],
        denials=[
            pb.Denial(host=to_text(denial.host), port=denial.port, why=to_text(denial.why))
            for denial in result.denials
        ],
    )


def from_result(
    message: pb.ExecutionResult, *, streamed_stdout: bytes = b"", streamed_stderr: bytes = b""
) -> ExecutionResult:
    """Decode a result; the streamed bytes are the output before it, from the beginning.

    Raises:
        MessageError: If no execution can have ended like this.
    """
    reason = member(REASONS, message.reason, of="reason")
    exit_code = message.exit_code if message.HasField("exit_code") else None
    if reason is Reason.COMPLETED and exit_code is None:
        raise MessageError("a program that ended by itself has no exit code")
    return ExecutionResult(
        exit_code=exit_code,
        signal=message.signal if message.HasField("signal") else None,
        reason=reason,
        stdout_bytes=_output(message, "stdout", streamed_stdout),
        stderr_bytes=_output(message, "stderr", streamed_stderr),
        stdout_dropped_bytes=count(message.stdout_dropped_bytes, of="dropped bytes"),
        stderr_dropped_bytes=count(message.stderr_dropped_bytes, of="dropped bytes"),
        duration_s=seconds(message.duration_s, of="a duration"),
        cpu_s=seconds(message.cpu_s, of="processor time"),
        peak_memory_bytes=count(message.peak_memory_bytes, of="memory"),
        limits_hit=tuple(member(LIMIT_NAMES, number, of="limit") for number in message.limits_hit),
        timings=Timings(
            queue_s=seconds(message.timings.queue_s, of="a duration"),
            prepare_s=seconds(message.timings.prepare_s, of="a duration"),
            run_s=seconds(message.timings.run_s, of="a duration"),
        ),
        backend=message.backend,
        isolation=member(ISOLATIONS, message.isolation, of="isolation"),
        denials=tuple(_from_denial(denial) for denial in message.denials),
    )


def _output(message: pb.ExecutionResult, stream: StreamName, streamed: bytes) -> bytes:
    field = f"{stream}_streamed_bytes"
    if not message.HasField(field):
        return message.stdout if stream == "stdout" else message.stderr
    size_bytes: int = getattr(message, field)
    if size_bytes > len(streamed):
        raise MessageError(f"{size_bytes} bytes of {stream} were streamed, {len(streamed)} came")
    return streamed[:size_bytes]


def _from_denial(message: pb.Denial) -> BlockedConnection:
    port = message.port if message.HasField("port") else None
    if port is not None and port > _LARGEST_PORT:
        raise MessageError(f"there is no port {port}")
    return BlockedConnection(host=message.host, port=port, why=message.why)


def to_cell(
    cell: CellResult,
    *,
    streamed_stdout: bytes | None = None,
    streamed_stderr: bytes | None = None,
) -> pb.CellResult:
    """Encode the result of a cell; output is left out as in `to_result`."""
    execution = to_result(
        cell.execution, streamed_stdout=streamed_stdout, streamed_stderr=streamed_stderr
    )
    return pb.CellResult(
        number=cell.number,
        execution=execution,
        outputs=[_to_rich_output(output) for output in cell.outputs],
        error=None if cell.error is None else _to_cell_error(cell.error),
        state=_CELL_STATE_NUMBERS[cell.state],
    )


def from_cell(
    message: pb.CellResult, *, streamed_stdout: bytes = b"", streamed_stderr: bytes = b""
) -> CellResult:
    """Decode the result of a cell.

    Raises:
        MessageError: If no cell can have ended like this.
    """
    return CellResult(
        number=message.number,
        execution=from_result(
            message.execution, streamed_stdout=streamed_stdout, streamed_stderr=streamed_stderr
        ),
        outputs=tuple(_from_rich_output(output) for output in message.outputs),
        error=_from_cell_error(message.error) if message.HasField("error") else None,
        state=member(_CELL_STATES, message.state, of="state of a cell"),
    )


def _to_rich_output(output: RichOutput) -> pb.RichOutput:
    return pb.RichOutput(
        kind=_OUTPUT_KIND_NUMBERS[output.kind],
        forms=[
            pb.Form(media_type=to_text(media_type), content=content)
            for media_type, content in output.forms.items()
        ],
        dropped=[to_text(media_type) for media_type in output.dropped],
    )


def _from_rich_output(message: pb.RichOutput) -> RichOutput:
    return RichOutput(
        kind=member(_OUTPUT_KINDS, message.kind, of="kind of output"),
        forms={form.media_type: form.content for form in message.forms},
        dropped=tuple(message.dropped),
    )


def _to_cell_error(error: CellError) -> pb.CellError:
    return pb.CellError(
        name=to_text(error.name),
        message=to_text(error.message),
        traceback=[to_text(line) for line in error.traceback],
    )


def _from_cell_error(message: pb.CellError) -> CellError:
    return CellError(name=message.name, message=message.message, traceback=tuple(message.traceback))


def to_file(file: FileInfo) -> pb.FileInfo:
    """Encode a workspace entry."""
    return pb.FileInfo(
        path=to_path(file.path),
        kind=_FILE_KIND_NUMBERS[file.kind],
        size_bytes=file.size_bytes,
        executable=file.executable,
    )


def from_file(message: pb.FileInfo) -> FileInfo:
    """Decode a workspace entry.

    Raises:
        MessageError: If the path cannot be in the workspace.
    """
    path = from_path(message.path)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise MessageError(f"not a path of a workspace: {str(path)!r:.80}")
    return FileInfo(
        path=path,
        kind=member(FILE_KINDS, message.kind, of="kind of file"),
        size_bytes=count(message.size_bytes, of="a size"),
        executable=message.executable,
    )
