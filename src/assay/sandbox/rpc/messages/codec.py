"""Codec of messages: limits, specs, programs, results, cells and files, both ways.

Encoding raises `UsageError` for values that no message can hold. Decoding checks every value: it
raises `MessageError` for messages that no Assay process sends, and `UsageError` for values that the
contracts reject. A server answers with an invalid request error; a client distrusts the server from
then on.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Final, Literal, TypeVar, assert_never

from assay.contracts.errors import UsageError
from assay.contracts.execution import (
    BlockedConnection,
    CellError,
    CellResult,
    Command,
    ExecutionResult,
    FileInfo,
    Isolation,
    LimitName,
    Limits,
    Program,
    PythonCode,
    Reason,
    RichOutput,
    SandboxSpec,
    Timings,
)
from assay.sandbox.rpc.messages import executor_pb2 as pb

_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_LARGEST_NUMBER: Final = 10**15
_LONGEST_PATH_BYTES: Final = 1 << 16
"""Longer than any kernel accepts; the workspace explains what is wrong with shorter ones."""

Number = TypeVar("Number", bound=int)
Member = TypeVar("Member", bound=str)


class MessageError(ValueError):
    """The other side sent a message that violates the protocol."""


def to_name(text: str) -> bytes:
    """Encode a name as the bytes that the kernel knows.

    Raises:
        MessageError: If no such bytes exist.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise MessageError(f"cannot be written as bytes: {text!r:.80}") from error


def from_name(name: bytes) -> str:
    """Decode a name; non-text bytes become surrogates, as in Python's file names."""
    return name.decode("utf-8", errors="surrogateescape")


def to_path(path: PurePosixPath) -> bytes:
    """Encode a path, as `to_name` does."""
    return to_name(str(path))


def from_path(name: bytes) -> PurePosixPath:
    """Decode a path; the sandbox decides whether it leaves the workspace.

    Raises:
        MessageError: If it is too long to check.
    """
    if len(name) > _LONGEST_PATH_BYTES:
        raise MessageError(f"a path of {len(name)} bytes")
    return PurePosixPath(from_name(name))


def to_text(text: str) -> str:
    """Return text that a message can hold: lone surrogates are escaped."""
    return text.encode("utf-8", errors="backslashreplace").decode()


def check_id(text: str, *, of: str) -> str:
    """Return a valid id.

    Raises:
        MessageError: If the id is not valid.
    """
    if not _ID.fullmatch(text):
        raise MessageError(f"not the id of {of}: {text!r:.80}")
    return text


def seconds(value: float, *, of: str) -> float:
    """Return a valid duration.

    Raises:
        MessageError: If it is negative, infinite or not a number.
    """
    if not (math.isfinite(value) and 0 <= value <= _LARGEST_NUMBER):
        raise MessageError(f"{of} cannot be {value!r}")
    return value


def count(value: int, *, of: str) -> int:
    """Return a valid count.

    Raises:
        MessageError: If it is out of range.
    """
    if not 0 <= value <= _LARGEST_NUMBER:
        raise MessageError(f"{of} cannot be {value}")
    return value


def member(table: Mapping[Number, Member], number: Number, *, of: str) -> Member:
    """Return the member of a closed set.

    Raises:
        MessageError: If the set has no such member.
    """
    try:
        return table[number]
    except KeyError:
        raise MessageError(f"there is no {of} {number}") from None


MAX_MESSAGE_BYTES: Final = 64 << 20
"""The largest message that either side accepts. Files and output come in smaller pieces."""
CHUNK_BYTES: Final = 256 << 10
"""The size of the pieces in which files and output are sent."""
_MOST_ARGUMENTS: Final = 100_000
"""More than any kernel passes to a program."""


def to_limits(limits: Limits) -> pb.Limits:
    """Encode all limits."""
    return pb.Limits(**{field.name: getattr(limits, field.name) for field in fields(limits)})


def from_limits(message: pb.Limits) -> Limits:
    """Decode limits; missing ones get their default.

    Raises:
        UsageError: If a number is not finite and positive.
    """
    given = {field.name: getattr(message, field.name) for field in fields(Limits)}
    return Limits(**{name: value for name, value in given.items() if message.HasField(name)})


def to_equipment(equipment: SandboxSpec) -> pb.Equipment:
    """Encode equipment."""
    return pb.Equipment(packages=equipment.packages, hosts=equipment.hosts)


def from_equipment(message: pb.Equipment) -> SandboxSpec:
    """Decode equipment.

    Raises:
        UsageError: If a host or a package has a wrong form.
    """
    return SandboxSpec(packages=tuple(message.packages), hosts=tuple(message.hosts))


def to_program(program: Program) -> pb.Program:
    """Encode a program.

    Raises:
        UsageError: If it is too large for a message.
    """
    message = pb.Program(
        stdin=program.stdin,
        env=[
            pb.Variable(name=to_name(name), value=to_name(value))
            for name, value in program.env.items()
        ],
        cwd=to_path(program.cwd),
        timeout_s=program.timeout_s,
    )
    match program:
        case Command():
            message.command.argv.extend(map(to_name, program.argv))
        case PythonCode():
            message.python.source = program.source
            message.python.filename = to_name(program.filename)
            message.python.args.extend(map(to_name, program.args))
        case _:
            assert_never(program)
    if message.ByteSize() > MAX_MESSAGE_BYTES - CHUNK_BYTES:
        raise UsageError(
            f"the program and its input are larger than {MAX_MESSAGE_BYTES >> 20} MiB",
            hint="write the input into a file of the sandbox",
        )
    return message


def from_program(message: pb.Program) -> Program:
    """Decode a program.

    Raises:
        MessageError: If it is neither a command nor Python.
        UsageError: If the contracts reject it.
    """
    env = {from_name(variable.name): from_name(variable.value) for variable in message.env}
    cwd = from_path(message.cwd)
    timeout_s = message.timeout_s if message.HasField("timeout_s") else None
    match message.WhichOneof("kind"):
        case "command":
            return Command(
                argv=_arguments(message.command.argv),
                stdin=message.stdin,
                env=env,
                cwd=cwd,
                timeout_s=timeout_s,
            )
        case "python":
            return PythonCode(
                source=message.python.source,
                filename=from_name(message.python.filename) or "main.py",
                args=_arguments(message.python.args),
                stdin=message.stdin,
                env=env,
                cwd=cwd,
                timeout_s=timeout_s,
            )
        case _:
            raise MessageError("neither a command nor Python")


def _arguments(names: Iterable[bytes]) -> tuple[str, ...]:
    decoded = tuple(map(from_name, names))
    if len(decoded) > _MOST_ARGUMENTS:
        raise MessageError(f"{len(decoded)} arguments")
    return decoded


def to_source(source: str) -> bytes:
    """Encode the source of a cell, including lone surrogates, which the interpreter reports."""
    return source.encode("utf-8", errors="surrogatepass")


def from_source(source: bytes) -> str:
    """Decode the source of a cell.

    Raises:
        MessageError: If it is not UTF-8.
    """
    try:
        return source.decode("utf-8", errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise MessageError("the source of a cell is not UTF-8") from error


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
