"""Values survive the way to another process; what could not have been sent is refused."""

import math
from pathlib import PurePosixPath
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.errors import (
    AssayError,
    FileTooLargeError,
    MissingExtraError,
    PackageError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceError,
)
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
from assay.sandbox.rpc.messages import codec, executor_pb2
from assay.sandbox.rpc.messages import codec as results
from assay.sandbox.rpc.messages.codec import MessageError
from assay.sandbox.rpc.messages.failures import ExecutorBusyError, from_failure, to_failure

NUMBERS = st.integers(1, 10**12)
SECONDS = st.floats(0, 1e12, allow_nan=False)
# Names as the kernel has them: any bytes without a NUL, as Python writes them.
NAMES = st.binary(min_size=1, max_size=20).map(
    lambda name: name.replace(b"\0", b"0").decode("utf-8", "surrogateescape")
)
PATHS = NAMES.map(lambda name: PurePosixPath(name.replace("/", "_").replace("..", "_")))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

limits = st.builds(
    Limits,
    wall_s=st.floats(0.001, 1e6),
    cpu_s=st.floats(0.001, 1e6),
    memory_mb=NUMBERS,
    processes=NUMBERS,
    disk_mb=NUMBERS,
    open_files=NUMBERS,
    output_bytes=NUMBERS,
)
requests = {
    "stdin": st.binary(max_size=50),
    "env": st.dictionaries(NAMES.map(lambda name: name.replace("=", "_")), NAMES, max_size=3),
    "cwd": PATHS,
    "timeout_s": st.none() | st.floats(0.001, 1e6),
}
programs: st.SearchStrategy[Program] = st.one_of(
    st.builds(Command, argv=st.lists(NAMES, min_size=1, max_size=4).map(tuple), **requests),
    st.builds(
        PythonCode,
        source=st.binary(max_size=50),
        filename=NAMES,
        args=st.lists(NAMES, max_size=3).map(tuple),
        **requests,
    ),
)
executions = st.builds(
    ExecutionResult,
    exit_code=st.integers(-(2**31), 2**31 - 1),
    signal=st.none() | st.integers(1, 64),
    reason=st.sampled_from(Reason),
    stdout_bytes=st.binary(max_size=50),
    stderr_bytes=st.binary(max_size=50),
    stdout_dropped_bytes=NUMBERS,
    stderr_dropped_bytes=NUMBERS,
    duration_s=SECONDS,
    cpu_s=SECONDS,
    peak_memory_bytes=NUMBERS,
    limits_hit=st.lists(st.sampled_from(get_args(LimitName)), max_size=3).map(tuple),
    timings=st.builds(Timings, queue_s=SECONDS, prepare_s=SECONDS, run_s=SECONDS),
    backend=TEXT,
    isolation=st.sampled_from(Isolation),
    denials=st.lists(
        st.builds(BlockedConnection, host=TEXT, port=st.none() | st.integers(0, 65535), why=TEXT),
        max_size=2,
    ).map(tuple),
)
cells = st.builds(
    CellResult,
    number=st.integers(1, 10**6),
    execution=executions,
    outputs=st.lists(
        st.builds(
            RichOutput,
            kind=st.sampled_from(["value", "display"]),
            forms=st.dictionaries(TEXT, st.binary(max_size=20), max_size=3),
            dropped=st.lists(TEXT, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    error=st.none()
    | st.builds(
        CellError, name=TEXT, message=TEXT, traceback=st.lists(TEXT, max_size=3).map(tuple)
    ),
    state=st.sampled_from(["kept", "rolled_back"]),
)
files = st.builds(
    FileInfo,
    path=PATHS.filter(lambda path: bool(path.parts)),
    kind=st.sampled_from(["file", "directory", "symlink", "other"]),
    size_bytes=NUMBERS,
    executable=st.booleans(),
)


@given(limits)
def test_limits_survive(value: Limits) -> None:
    assert codec.from_limits(codec.to_limits(value)) == value


def test_limits_that_are_left_out_have_their_defaults() -> None:
    assert codec.from_limits(executor_pb2.Limits()) == Limits()


@given(st.lists(TEXT.filter(lambda text: text.strip(" -\0") == text != ""), max_size=3))
def test_equipment_survives(packages: list[str]) -> None:
    try:
        value = SandboxSpec(packages=tuple(packages), hosts=("*.example.org:8443",))
    except UsageError:
        return

    assert codec.from_equipment(codec.to_equipment(value)) == value


@given(programs)
def test_programs_survive(value: Program) -> None:
    assert codec.from_program(codec.to_program(value)) == value


@given(executions)
def test_results_survive(value: ExecutionResult) -> None:
    assert results.from_result(results.to_result(value)) == value


@given(executions)
def test_output_that_was_streamed_is_not_sent_again(value: ExecutionResult) -> None:
    message = results.to_result(value, {"stdout": value.stdout_bytes, "stderr": value.stderr_bytes})

    assert (message.stdout, message.stderr) == (b"", b"")
    received = results.from_result(
        message,
        {"stdout": value.stdout_bytes + b"beyond the limit", "stderr": value.stderr_bytes},
    )
    assert received == value


@given(cells)
def test_cells_survive(value: CellResult) -> None:
    assert results.from_cell(results.to_cell(value)) == value


@given(files)
def test_entries_survive(value: FileInfo) -> None:
    assert results.from_file(results.to_file(value)) == value


@given(st.text(max_size=30))
def test_source_of_cells_survives(source: str) -> None:
    assert codec.from_source(codec.to_source(source)) == source


def _result() -> executor_pb2.ExecutionResult:
    return executor_pb2.ExecutionResult(
        exit_code=0,
        reason=executor_pb2.REASON_COMPLETED,
        isolation=executor_pb2.ISOLATION_NONE,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reason", 0),
        ("reason", 99),
        ("isolation", 0),
        ("duration_s", math.nan),
        ("duration_s", -1.0),
        ("cpu_s", math.inf),
        ("peak_memory_bytes", 2**63),
        ("stdout_dropped_bytes", 2**63),
        ("stdout_streamed_bytes", 1),
    ],
)
def test_a_result_that_cannot_be_is_refused(field: str, value: float) -> None:
    assert results.from_result(_result()).exit_code == 0
    message = _result()
    setattr(message, field, value)

    with pytest.raises(MessageError):
        results.from_result(message)


def test_a_program_that_ended_by_itself_has_an_exit_code() -> None:
    message = _result()
    message.ClearField("exit_code")

    with pytest.raises(MessageError, match="exit code"):
        results.from_result(message)


@pytest.mark.parametrize("path", [b"/etc/passwd", b"../up", b"a/../../b", b"", b"x" * 100_000])
def test_an_entry_outside_the_workspace_is_refused(path: bytes) -> None:
    message = executor_pb2.FileInfo(path=path, kind=executor_pb2.FILE_KIND_FILE)

    with pytest.raises(MessageError):
        results.from_file(message)


def test_a_program_of_no_kind_is_refused() -> None:
    with pytest.raises(MessageError):
        codec.from_program(executor_pb2.Program())


def test_a_program_too_large_for_a_message_is_refused_where_it_is_made() -> None:
    with pytest.raises(UsageError, match="64 MiB"):
        codec.to_program(PythonCode(source=b"", stdin=bytes(64 << 20)))


def every_error(kind: type[AssayError] = WorkspaceError) -> list[type[AssayError]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in every_error(below))]


PLAIN = [kind for kind in every_error() if kind is not FileTooLargeError]


@pytest.mark.parametrize("kind", [*PLAIN, UsageError, PackageError])
def test_an_error_arrives_as_itself(kind: type[AssayError]) -> None:
    received = from_failure(to_failure(kind("what", hint="how")))

    assert (type(received), str(received), received.hint) == (kind, "what", "how")


@pytest.mark.parametrize("dispatch", ["never_started", "outcome_unknown"])
def test_what_is_known_of_a_lost_program_arrives(dispatch: str) -> None:
    error = SandboxUnavailableError("gone", dispatch=dispatch)  # type: ignore[arg-type]

    received = from_failure(to_failure(error))

    assert isinstance(received, SandboxUnavailableError)
    assert received.dispatch == dispatch


def test_the_details_of_errors_arrive() -> None:
    large = from_failure(to_failure(FileTooLargeError("large", size_bytes=9, max_bytes=8)))
    busy = from_failure(to_failure(ExecutorBusyError("busy", retry_after_s=2.5)))
    extra = from_failure(to_failure(MissingExtraError("packages", extra="packages")))

    assert isinstance(large, FileTooLargeError)
    assert (large.size_bytes, large.max_bytes) == (9, 8)
    assert isinstance(busy, ExecutorBusyError)
    assert (busy.retry_after_s, busy.dispatch) == (2.5, "never_started")
    assert isinstance(extra, UsageError)
    assert "assay-agent[packages]" in extra.hint


def test_a_fault_says_nothing_of_itself_to_the_other_side() -> None:
    received = from_failure(to_failure(RuntimeError("a secret")))

    assert "secret" not in str(received)
    assert isinstance(received, SandboxUnavailableError)
    assert received.dispatch == "outcome_unknown"


def test_an_unknown_code_is_not_believed_to_have_done_nothing() -> None:
    failure = executor_pb2.Failure(
        code=99,  # type: ignore[arg-type]
        dispatch=executor_pb2.DISPATCH_NEVER_STARTED,
    )

    received = from_failure(failure)

    assert isinstance(received, SandboxUnavailableError)
    assert received.dispatch == "outcome_unknown"
