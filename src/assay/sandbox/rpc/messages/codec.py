"""Codec of messages: limits, specs, programs, results, cells and files, both ways.

Encoding raises `UsageError` for values that no message can hold. Decoding checks every value: it
raises `MessageError` for messages that no Assay process sends, and `UsageError` for values that the
contracts reject. A server answers with an invalid request error; a client distrusts the server from
then on.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import PurePosixPath
from typing import Final, Generic, Literal, TypeVar, assert_never, get_args

from assay.contracts.errors import UsageError
from assay.contracts.execution import (
    BlockedConnection,
    CellError,
    CellResult,
    Command,
    EditableProject,
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

StreamName = Literal["stdout", "stderr"]
FileKind = Literal["file", "directory", "symlink", "other"]
Number = TypeVar("Number", int, float)
Member = TypeVar("Member", bound=str)


class MessageError(ValueError):
    """The other side sent a message that violates the protocol."""


class EnumMap(Generic[Member]):
    """Maps an enum of the messages to values of the contracts: `REASON_CPU_TIME` and `cpu_time`."""

    def __init__(self, prefix: str, members: Iterable[Member]) -> None:
        self._prefix = prefix
        self._members = {getattr(pb, self.encode(member)): member for member in members}

    def encode(self, member: Member) -> str:
        """Return the name of the enum value, which a message accepts as well as its number."""
        return f"{self._prefix}_{member.upper()}"

    def decode(self, number: int) -> Member:
        """Return the value for a number.

        Raises:
            MessageError: If there is none.
        """
        try:
            return self._members[number]
        except KeyError:
            what = self._prefix.lower().replace("_", " ")
            raise MessageError(f"there is no {what} {number}") from None


ISOLATIONS: Final = EnumMap("ISOLATION", Isolation)
STREAMS: Final = EnumMap[StreamName]("STREAM", get_args(StreamName))
_REASONS: Final = EnumMap("REASON", Reason)
_LIMIT_NAMES: Final = EnumMap[LimitName]("LIMIT_NAME", get_args(LimitName))
FILE_KINDS: Final = EnumMap[FileKind]("FILE_KIND", get_args(FileKind))
_OUTPUT_KINDS: Final = EnumMap[Literal["value", "display"]](
    "RICH_OUTPUT_KIND", ("value", "display")
)
_CELL_STATES: Final = EnumMap[Literal["kept", "rolled_back"]]("CELL_STATE", ("kept", "rolled_back"))


def to_name(text: str) -> bytes:
    """Encode a name as the bytes that the kernel knows.

    Raises:
        UsageError: If no such bytes exist.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"cannot be written as bytes: {text!r:.80}") from error


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


def measure(value: Number, *, of: str) -> Number:
    """Return a valid duration, count or size.

    Raises:
        MessageError: If it is negative, too large or not a number.
    """
    # Two comparisons also reject NaN.
    if not 0 <= value <= _LARGEST_NUMBER:
        raise MessageError(f"{of} cannot be {value!r}")
    return value


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
    project = equipment.project
    return pb.Equipment(
        packages=equipment.packages,
        hosts=equipment.hosts,
        project=None if project is None else pb.Project(**asdict(project)),
    )


def from_equipment(message: pb.Equipment) -> SandboxSpec:
    """Decode equipment.

    Raises:
        UsageError: If a host, a package or the project has a wrong form.
    """
    project = None
    if message.HasField("project"):
        project = EditableProject(
            name=message.project.name,
            version=message.project.version,
            requires=tuple(message.project.requires),
            entry_points=message.project.entry_points,
            folders=tuple(message.project.folders),
        )
    return SandboxSpec(
        packages=tuple(message.packages), hosts=tuple(message.hosts), project=project
    )


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


_LARGEST_PORT: Final = 65535


Streamed = Mapping[StreamName, bytes]
"""The output of both streams that the reader of a result has already, from the beginning."""


def to_result(result: ExecutionResult, streamed: Streamed | None = None) -> pb.ExecutionResult:
    """Encode a result; output that the reader already has from the stream is only counted."""
    streamed = streamed or {}
    stdout_is_known = streamed.get("stdout") == result.stdout_bytes
    stderr_is_known = streamed.get("stderr") == result.stderr_bytes
    return pb.ExecutionResult(
        exit_code=result.exit_code,
        signal=result.signal,
        reason=_REASONS.encode(result.reason),
        stdout=b"" if stdout_is_known else result.stdout_bytes,
        stderr=b"" if stderr_is_known else result.stderr_bytes,
        stdout_streamed_bytes=len(result.stdout_bytes) if stdout_is_known else None,
        stderr_streamed_bytes=len(result.stderr_bytes) if stderr_is_known else None,
        stdout_dropped_bytes=result.stdout_dropped_bytes,
        stderr_dropped_bytes=result.stderr_dropped_bytes,
        duration_s=result.duration_s,
        cpu_s=result.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        limits_hit=[_LIMIT_NAMES.encode(name) for name in result.limits_hit],
        timings=pb.Timings(**asdict(result.timings)),
        backend=to_text(result.backend),
        isolation=ISOLATIONS.encode(result.isolation),
        denials=[
            pb.Denial(host=to_text(denial.host), port=denial.port, why=to_text(denial.why))
            for denial in result.denials
        ],
    )


def from_result(message: pb.ExecutionResult, streamed: Streamed | None = None) -> ExecutionResult:
    """Decode a result.

    Raises:
        MessageError: If no execution can have ended like this.
    """
    reason = _REASONS.decode(message.reason)
    exit_code = message.exit_code if message.HasField("exit_code") else None
    if reason is Reason.COMPLETED and exit_code is None:
        raise MessageError("a program that ended by itself has no exit code")
    return ExecutionResult(
        exit_code=exit_code,
        signal=message.signal if message.HasField("signal") else None,
        reason=reason,
        stdout_bytes=_output(message, "stdout", streamed or {}),
        stderr_bytes=_output(message, "stderr", streamed or {}),
        stdout_dropped_bytes=measure(message.stdout_dropped_bytes, of="dropped bytes"),
        stderr_dropped_bytes=measure(message.stderr_dropped_bytes, of="dropped bytes"),
        duration_s=measure(message.duration_s, of="a duration"),
        cpu_s=measure(message.cpu_s, of="processor time"),
        peak_memory_bytes=measure(message.peak_memory_bytes, of="memory"),
        limits_hit=tuple(_LIMIT_NAMES.decode(number) for number in message.limits_hit),
        timings=Timings(
            queue_s=measure(message.timings.queue_s, of="a duration"),
            prepare_s=measure(message.timings.prepare_s, of="a duration"),
            run_s=measure(message.timings.run_s, of="a duration"),
        ),
        backend=message.backend,
        isolation=ISOLATIONS.decode(message.isolation),
        denials=tuple(map(_from_denial, message.denials)),
    )


def _output(message: pb.ExecutionResult, stream: StreamName, streamed: Streamed) -> bytes:
    field = f"{stream}_streamed_bytes"
    if not message.HasField(field):
        return getattr(message, stream)
    size_bytes: int = getattr(message, field)
    known = streamed.get(stream, b"")
    if size_bytes > len(known):
        raise MessageError(f"{size_bytes} bytes of {stream} were streamed, {len(known)} came")
    return known[:size_bytes]


def _from_denial(message: pb.Denial) -> BlockedConnection:
    port = message.port if message.HasField("port") else None
    if port is not None and port > _LARGEST_PORT:
        raise MessageError(f"there is no port {port}")
    return BlockedConnection(host=message.host, port=port, why=message.why)


def to_cell(cell: CellResult, streamed: Streamed | None = None) -> pb.CellResult:
    """Encode the result of a cell; output is left out as in `to_result`."""
    return pb.CellResult(
        number=cell.number,
        execution=to_result(cell.execution, streamed),
        outputs=[
            pb.RichOutput(
                kind=_OUTPUT_KINDS.encode(output.kind),
                forms=[
                    pb.Form(media_type=to_text(media_type), content=content)
                    for media_type, content in output.forms.items()
                ],
                dropped=map(to_text, output.dropped),
            )
            for output in cell.outputs
        ],
        error=None
        if cell.error is None
        else pb.CellError(
            name=to_text(cell.error.name),
            message=to_text(cell.error.message),
            traceback=map(to_text, cell.error.traceback),
        ),
        state=_CELL_STATES.encode(cell.state),
    )


def from_cell(message: pb.CellResult, streamed: Streamed | None = None) -> CellResult:
    """Decode the result of a cell.

    Raises:
        MessageError: If no cell can have ended like this.
    """
    error = message.error
    return CellResult(
        number=message.number,
        execution=from_result(message.execution, streamed),
        outputs=tuple(
            RichOutput(
                kind=_OUTPUT_KINDS.decode(output.kind),
                forms={form.media_type: form.content for form in output.forms},
                dropped=tuple(output.dropped),
            )
            for output in message.outputs
        ),
        error=CellError(name=error.name, message=error.message, traceback=tuple(error.traceback))
        if message.HasField("error")
        else None,
        state=_CELL_STATES.decode(message.state),
    )


def to_file(file: FileInfo) -> pb.FileInfo:
    """Encode a workspace entry."""
    return pb.FileInfo(
        path=to_path(file.path),
        kind=FILE_KINDS.encode(file.kind),
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
        kind=FILE_KINDS.decode(message.kind),
        size_bytes=measure(message.size_bytes, of="a size"),
        executable=message.executable,
    )
