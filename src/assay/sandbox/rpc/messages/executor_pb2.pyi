from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_UNSPECIFIED: _ClassVar[Isolation]
    ISOLATION_NONE: _ClassVar[Isolation]
    ISOLATION_RESTRICTED: _ClassVar[Isolation]
    ISOLATION_ISOLATED: _ClassVar[Isolation]
    ISOLATION_KERNEL: _ClassVar[Isolation]
    ISOLATION_MACHINE: _ClassVar[Isolation]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_COMPLETED: _ClassVar[Reason]
    REASON_SIGNALLED: _ClassVar[Reason]
    REASON_COULD_NOT_START: _ClassVar[Reason]
    REASON_TIMED_OUT: _ClassVar[Reason]
    REASON_CPU_TIME: _ClassVar[Reason]
    REASON_OUT_OF_MEMORY: _ClassVar[Reason]
    REASON_TOO_MANY_PROCESSES: _ClassVar[Reason]
    REASON_DISK_FULL: _ClassVar[Reason]
    REASON_OUTPUT_LIMIT: _ClassVar[Reason]
    REASON_CANCELLED: _ClassVar[Reason]

class LimitName(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIMIT_NAME_UNSPECIFIED: _ClassVar[LimitName]
    LIMIT_NAME_WALL_S: _ClassVar[LimitName]
    LIMIT_NAME_CPU_S: _ClassVar[LimitName]
    LIMIT_NAME_MEMORY_MB: _ClassVar[LimitName]
    LIMIT_NAME_PROCESSES: _ClassVar[LimitName]
    LIMIT_NAME_DISK_MB: _ClassVar[LimitName]
    LIMIT_NAME_OUTPUT_BYTES: _ClassVar[LimitName]

class Stream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STREAM_UNSPECIFIED: _ClassVar[Stream]
    STREAM_STDOUT: _ClassVar[Stream]
    STREAM_STDERR: _ClassVar[Stream]

class FileKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILE_KIND_UNSPECIFIED: _ClassVar[FileKind]
    FILE_KIND_FILE: _ClassVar[FileKind]
    FILE_KIND_DIRECTORY: _ClassVar[FileKind]
    FILE_KIND_SYMLINK: _ClassVar[FileKind]
    FILE_KIND_OTHER: _ClassVar[FileKind]

class RichOutputKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RICH_OUTPUT_KIND_UNSPECIFIED: _ClassVar[RichOutputKind]
    RICH_OUTPUT_KIND_VALUE: _ClassVar[RichOutputKind]
    RICH_OUTPUT_KIND_DISPLAY: _ClassVar[RichOutputKind]

class CellState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CELL_STATE_UNSPECIFIED: _ClassVar[CellState]
    CELL_STATE_KEPT: _ClassVar[CellState]
    CELL_STATE_ROLLED_BACK: _ClassVar[CellState]

class FailureCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CODE_UNSPECIFIED: _ClassVar[FailureCode]
    FAILURE_CODE_USAGE: _ClassVar[FailureCode]
    FAILURE_CODE_MISSING_EXTRA: _ClassVar[FailureCode]
    FAILURE_CODE_ISOLATION_UNAVAILABLE: _ClassVar[FailureCode]
    FAILURE_CODE_PACKAGE: _ClassVar[FailureCode]
    FAILURE_CODE_SANDBOX_UNAVAILABLE: _ClassVar[FailureCode]
    FAILURE_CODE_WORKSPACE: _ClassVar[FailureCode]
    FAILURE_CODE_PATH_OUTSIDE_WORKSPACE: _ClassVar[FailureCode]
    FAILURE_CODE_FILE_NOT_FOUND: _ClassVar[FailureCode]
    FAILURE_CODE_NOT_A_REGULAR_FILE: _ClassVar[FailureCode]
    FAILURE_CODE_FILE_TOO_LARGE: _ClassVar[FailureCode]
    FAILURE_CODE_WORKSPACE_FULL: _ClassVar[FailureCode]
    FAILURE_CODE_BUSY: _ClassVar[FailureCode]
    FAILURE_CODE_REFUSED: _ClassVar[FailureCode]
    FAILURE_CODE_INTERNAL: _ClassVar[FailureCode]
    FAILURE_CODE_POLICY: _ClassVar[FailureCode]

class Dispatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISPATCH_UNSPECIFIED: _ClassVar[Dispatch]
    DISPATCH_NEVER_STARTED: _ClassVar[Dispatch]
    DISPATCH_OUTCOME_UNKNOWN: _ClassVar[Dispatch]
ISOLATION_UNSPECIFIED: Isolation
ISOLATION_NONE: Isolation
ISOLATION_RESTRICTED: Isolation
ISOLATION_ISOLATED: Isolation
ISOLATION_KERNEL: Isolation
ISOLATION_MACHINE: Isolation
REASON_UNSPECIFIED: Reason
REASON_COMPLETED: Reason
REASON_SIGNALLED: Reason
REASON_COULD_NOT_START: Reason
REASON_TIMED_OUT: Reason
REASON_CPU_TIME: Reason
REASON_OUT_OF_MEMORY: Reason
REASON_TOO_MANY_PROCESSES: Reason
REASON_DISK_FULL: Reason
REASON_OUTPUT_LIMIT: Reason
REASON_CANCELLED: Reason
LIMIT_NAME_UNSPECIFIED: LimitName
LIMIT_NAME_WALL_S: LimitName
LIMIT_NAME_CPU_S: LimitName
LIMIT_NAME_MEMORY_MB: LimitName
LIMIT_NAME_PROCESSES: LimitName
LIMIT_NAME_DISK_MB: LimitName
LIMIT_NAME_OUTPUT_BYTES: LimitName
STREAM_UNSPECIFIED: Stream
STREAM_STDOUT: Stream
STREAM_STDERR: Stream
FILE_KIND_UNSPECIFIED: FileKind
FILE_KIND_FILE: FileKind
FILE_KIND_DIRECTORY: FileKind
FILE_KIND_SYMLINK: FileKind
FILE_KIND_OTHER: FileKind
RICH_OUTPUT_KIND_UNSPECIFIED: RichOutputKind
RICH_OUTPUT_KIND_VALUE: RichOutputKind
RICH_OUTPUT_KIND_DISPLAY: RichOutputKind
CELL_STATE_UNSPECIFIED: CellState
CELL_STATE_KEPT: CellState
CELL_STATE_ROLLED_BACK: CellState
FAILURE_CODE_UNSPECIFIED: FailureCode
FAILURE_CODE_USAGE: FailureCode
FAILURE_CODE_MISSING_EXTRA: FailureCode
FAILURE_CODE_ISOLATION_UNAVAILABLE: FailureCode
FAILURE_CODE_PACKAGE: FailureCode
FAILURE_CODE_SANDBOX_UNAVAILABLE: FailureCode
FAILURE_CODE_WORKSPACE: FailureCode
FAILURE_CODE_PATH_OUTSIDE_WORKSPACE: FailureCode
FAILURE_CODE_FILE_NOT_FOUND: FailureCode
FAILURE_CODE_NOT_A_REGULAR_FILE: FailureCode
FAILURE_CODE_FILE_TOO_LARGE: FailureCode
FAILURE_CODE_WORKSPACE_FULL: FailureCode
FAILURE_CODE_BUSY: FailureCode
FAILURE_CODE_REFUSED: FailureCode
FAILURE_CODE_INTERNAL: FailureCode
FAILURE_CODE_POLICY: FailureCode
DISPATCH_UNSPECIFIED: Dispatch
DISPATCH_NEVER_STARTED: Dispatch
DISPATCH_OUTCOME_UNKNOWN: Dispatch

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("backend", "isolation", "instance", "lease_s", "max_message_bytes", "interpreters", "branches", "digest", "toolchains")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTERPRETERS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOOLCHAINS_FIELD_NUMBER: _ClassVar[int]
    backend: str
    isolation: Isolation
    instance: str
    lease_s: float
    max_message_bytes: int
    interpreters: bool
    branches: bool
    digest: str
    toolchains: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, backend: _Optional[str] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., instance: _Optional[str] = ..., lease_s: _Optional[float] = ..., max_message_bytes: _Optional[int] = ..., interpreters: _Optional[bool] = ..., branches: _Optional[bool] = ..., digest: _Optional[str] = ..., toolchains: _Optional[_Iterable[str]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("wall_s", "cpu_s", "memory_mb", "processes", "disk_mb", "open_files", "output_bytes")
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    DISK_MB_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    wall_s: float
    cpu_s: float
    memory_mb: int
    processes: int
    disk_mb: int
    open_files: int
    output_bytes: int
    def __init__(self, wall_s: _Optional[float] = ..., cpu_s: _Optional[float] = ..., memory_mb: _Optional[int] = ..., processes: _Optional[int] = ..., disk_mb: _Optional[int] = ..., open_files: _Optional[int] = ..., output_bytes: _Optional[int] = ...) -> None: ...

class Equipment(_message.Message):
    __slots__ = ("packages", "hosts")
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    packages: _containers.RepeatedScalarFieldContainer[str]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, packages: _Optional[_Iterable[str]] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id", "limits", "equipment")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EQUIPMENT_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    limits: Limits
    equipment: Equipment
    def __init__(self, sandbox_id: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., equipment: _Optional[_Union[Equipment, _Mapping]] = ...) -> None: ...

class OpenSandboxResponse(_message.Message):
    __slots__ = ("isolation",)
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    isolation: Isolation
    def __init__(self, isolation: _Optional[_Union[Isolation, str]] = ...) -> None: ...

class CloseSandboxRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class CloseSandboxResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewSandboxesRequest(_message.Message):
    __slots__ = ("sandbox_ids",)
    SANDBOX_IDS_FIELD_NUMBER: _ClassVar[int]
    sandbox_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sandbox_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RenewSandboxesResponse(_message.Message):
    __slots__ = ("gone",)
    GONE_FIELD_NUMBER: _ClassVar[int]
    gone: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gone: _Optional[_Iterable[str]] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("argv",)
    ARGV_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, argv: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PythonCode(_message.Message):
    __slots__ = ("source", "filename", "args")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    source: bytes
    filename: bytes
    args: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, source: _Optional[bytes] = ..., filename: _Optional[bytes] = ..., args: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Variable(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("command", "python", "stdin", "env", "cwd", "timeout_s")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    command: Command
    python: PythonCode
    stdin: bytes
    env: _containers.RepeatedCompositeFieldContainer[Variable]
    cwd: bytes
    timeout_s: float
    def __init__(self, command: _Optional[_Union[Command, _Mapping]] = ..., python: _Optional[_Union[PythonCode, _Mapping]] = ..., stdin: _Optional[bytes] = ..., env: _Optional[_Iterable[_Union[Variable, _Mapping]]] = ..., cwd: _Optional[bytes] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class NewFile(_message.Message):
    __slots__ = ("path", "content", "executable")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    content: bytes
    executable: bool
    def __init__(self, path: _Optional[bytes] = ..., content: _Optional[bytes] = ..., executable: _Optional[bool] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("sandbox_id", "execution_id", "program", "fresh")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    execution_id: str
    program: Program
    fresh: FreshSandbox
    def __init__(self, sandbox_id: _Optional[str] = ..., execution_id: _Optional[str] = ..., program: _Optional[_Union[Program, _Mapping]] = ..., fresh: _Optional[_Union[FreshSandbox, _Mapping]] = ...) -> None: ...

class FreshSandbox(_message.Message):
    __slots__ = ("limits", "equipment", "files")
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EQUIPMENT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    limits: Limits
    equipment: Equipment
    files: _containers.RepeatedCompositeFieldContainer[NewFile]
    def __init__(self, limits: _Optional[_Union[Limits, _Mapping]] = ..., equipment: _Optional[_Union[Equipment, _Mapping]] = ..., files: _Optional[_Iterable[_Union[NewFile, _Mapping]]] = ...) -> None: ...

class AttachStreamRequest(_message.Message):
    __slots__ = ("execution_id", "stdout_offset", "stderr_offset")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STDOUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STDERR_OFFSET_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    stdout_offset: int
    stderr_offset: int
    def __init__(self, execution_id: _Optional[str] = ..., stdout_offset: _Optional[int] = ..., stderr_offset: _Optional[int] = ...) -> None: ...

class StopExecutionRequest(_message.Message):
    __slots__ = ("execution_id",)
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    def __init__(self, execution_id: _Optional[str] = ...) -> None: ...

class StopExecutionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelExecutionsRequest(_message.Message):
    __slots__ = ("sandbox_id",)
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    def __init__(self, sandbox_id: _Optional[str] = ...) -> None: ...

class CancelExecutionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_s", "prepare_s", "run_s")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREPARE_S_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    prepare_s: float
    run_s: float
    def __init__(self, queue_s: _Optional[float] = ..., prepare_s: _Optional[float] = ..., run_s: _Optional[float] = ...) -> None: ...

class Denial(_message.Message):
    __slots__ = ("host", "port", "why")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    why: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class ExecutionResult(_message.Message):
    __slots__ = ("exit_code", "signal", "reason", "stdout", "stderr", "stdout_dropped_bytes", "stderr_dropped_bytes", "duration_s", "cpu_s", "peak_memory_bytes", "limits_hit", "timings", "backend", "isolation", "denials", "stdout_streamed_bytes", "stderr_streamed_bytes")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    STDOUT_DROPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_DROPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_HIT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    DENIALS_FIELD_NUMBER: _ClassVar[int]
    STDOUT_STREAMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_STREAMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    signal: int
    reason: Reason
    stdout: bytes
    stderr: bytes
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int
    duration_s: float
    cpu_s: float
    peak_memory_bytes: int
    limits_hit: _containers.RepeatedScalarFieldContainer[LimitName]
    timings: Timings
    backend: str
    isolation: Isolation
    denials: _containers.RepeatedCompositeFieldContainer[Denial]
    stdout_streamed_bytes: int
    stderr_streamed_bytes: int
    def __init__(self, exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., stdout_dropped_bytes: _Optional[int] = ..., stderr_dropped_bytes: _Optional[int] = ..., duration_s: _Optional[float] = ..., cpu_s: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., limits_hit: _Optional[_Iterable[_Union[LimitName, str]]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., backend: _Optional[str] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., denials: _Optional[_Iterable[_Union[Denial, _Mapping]]] = ..., stdout_streamed_bytes: _Optional[int] = ..., stderr_streamed_bytes: _Optional[int] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("stream", "offset", "data")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    stream: Stream
    offset: int
    data: bytes
    def __init__(self, stream: _Optional[_Union[Stream, str]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ExecutionEvent(_message.Message):
    __slots__ = ("sequence", "output", "result", "cell", "failure")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CELL_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    output: Output
    result: ExecutionResult
    cell: CellResult
    failure: Failure
    def __init__(self, sequence: _Optional[int] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., result: _Optional[_Union[ExecutionResult, _Mapping]] = ..., cell: _Optional[_Union[CellResult, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class WriteFileRequest(_message.Message):
    __slots__ = ("sandbox_id", "path", "executable", "content")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    path: bytes
    executable: bool
    content: bytes
    def __init__(self, sandbox_id: _Optional[str] = ..., path: _Optional[bytes] = ..., executable: _Optional[bool] = ..., content: _Optional[bytes] = ...) -> None: ...

class WriteFileResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("sandbox_id", "path", "max_bytes")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    path: bytes
    max_bytes: int
    def __init__(self, sandbox_id: _Optional[str] = ..., path: _Optional[bytes] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("sandbox_id", "path")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    path: bytes
    def __init__(self, sandbox_id: _Optional[str] = ..., path: _Optional[bytes] = ...) -> None: ...

class FileInfo(_message.Message):
    __slots__ = ("path", "kind", "size_bytes", "executable")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    kind: FileKind
    size_bytes: int
    executable: bool
    def __init__(self, path: _Optional[bytes] = ..., kind: _Optional[_Union[FileKind, str]] = ..., size_bytes: _Optional[int] = ..., executable: _Optional[bool] = ...) -> None: ...

class ListFilesResponse(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileInfo]
    def __init__(self, files: _Optional[_Iterable[_Union[FileInfo, _Mapping]]] = ...) -> None: ...

class MakeDirectoryRequest(_message.Message):
    __slots__ = ("sandbox_id", "path")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    path: bytes
    def __init__(self, sandbox_id: _Optional[str] = ..., path: _Optional[bytes] = ...) -> None: ...

class MakeDirectoryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemovePathRequest(_message.Message):
    __slots__ = ("sandbox_id", "path")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    path: bytes
    def __init__(self, sandbox_id: _Optional[str] = ..., path: _Optional[bytes] = ...) -> None: ...

class RemovePathResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenInterpreterRequest(_message.Message):
    __slots__ = ("sandbox_id", "interpreter_id")
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    INTERPRETER_ID_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    interpreter_id: str
    def __init__(self, sandbox_id: _Optional[str] = ..., interpreter_id: _Optional[str] = ...) -> None: ...

class OpenInterpreterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BranchInterpreterRequest(_message.Message):
    __slots__ = ("interpreter_id", "branch_id")
    INTERPRETER_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_ID_FIELD_NUMBER: _ClassVar[int]
    interpreter_id: str
    branch_id: str
    def __init__(self, interpreter_id: _Optional[str] = ..., branch_id: _Optional[str] = ...) -> None: ...

class BranchInterpreterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseInterpreterRequest(_message.Message):
    __slots__ = ("interpreter_id",)
    INTERPRETER_ID_FIELD_NUMBER: _ClassVar[int]
    interpreter_id: str
    def __init__(self, interpreter_id: _Optional[str] = ...) -> None: ...

class CloseInterpreterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunCellRequest(_message.Message):
    __slots__ = ("interpreter_id", "execution_id", "source", "timeout_s")
    INTERPRETER_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    interpreter_id: str
    execution_id: str
    source: bytes
    timeout_s: float
    def __init__(self, interpreter_id: _Optional[str] = ..., execution_id: _Optional[str] = ..., source: _Optional[bytes] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class InterruptCellRequest(_message.Message):
    __slots__ = ("interpreter_id",)
    INTERPRETER_ID_FIELD_NUMBER: _ClassVar[int]
    interpreter_id: str
    def __init__(self, interpreter_id: _Optional[str] = ...) -> None: ...

class InterruptCellResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Form(_message.Message):
    __slots__ = ("media_type", "content")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    content: bytes
    def __init__(self, media_type: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class RichOutput(_message.Message):
    __slots__ = ("kind", "forms", "dropped")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    kind: RichOutputKind
    forms: _containers.RepeatedCompositeFieldContainer[Form]
    dropped: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[_Union[RichOutputKind, str]] = ..., forms: _Optional[_Iterable[_Union[Form, _Mapping]]] = ..., dropped: _Optional[_Iterable[str]] = ...) -> None: ...

class CellError(_message.Message):
    __slots__ = ("name", "message", "traceback")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    name: str
    message: str
    traceback: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[_Iterable[str]] = ...) -> None: ...

class CellResult(_message.Message):
    __slots__ = ("number", "execution", "outputs", "error", "state")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    number: int
    execution: ExecutionResult
    outputs: _containers.RepeatedCompositeFieldContainer[RichOutput]
    error: CellError
    state: CellState
    def __init__(self, number: _Optional[int] = ..., execution: _Optional[_Union[ExecutionResult, _Mapping]] = ..., outputs: _Optional[_Iterable[_Union[RichOutput, _Mapping]]] = ..., error: _Optional[_Union[CellError, _Mapping]] = ..., state: _Optional[_Union[CellState, str]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "hint", "dispatch", "size_bytes", "max_bytes", "extra", "retry_after_s")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    code: FailureCode
    message: str
    hint: str
    dispatch: Dispatch
    size_bytes: int
    max_bytes: int
    extra: str
    retry_after_s: float
    def __init__(self, code: _Optional[_Union[FailureCode, str]] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., dispatch: _Optional[_Union[Dispatch, str]] = ..., size_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., extra: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...
