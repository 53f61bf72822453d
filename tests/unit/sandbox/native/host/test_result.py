import signal
from typing import Any

import pytest

from assay.contracts.errors import SandboxUnavailableError
from assay.contracts.execution import ExecutionResult, Isolation, LimitName, Limits, Reason, Timings
from assay.sandbox.native.host.supervisor import RawResult, build_result
from assay.sandbox.native.host.usage_monitor import Usage
from assay.sandbox.native.kernel.cgroups import GroupUsage
from assay.sandbox.output import Capture

LIMITS = Limits(memory_mb=100, cpu_s=10, processes=8, output_bytes=10)
TIMINGS = Timings(queue_s=0.1, prepare_s=0.2, run_s=0.3)
EXITED_WELL = {"ended": 0, "cpu_s": 0.0, "grown_kb": 0, "alone": True}
KILLED_BY_US = (
    Reason.TIMED_OUT,
    Reason.CPU_TIME,
    Reason.OUT_OF_MEMORY,
    Reason.TOO_MANY_PROCESSES,
    Reason.DISK_FULL,
    Reason.OUTPUT_LIMIT,
    Reason.CANCELLED,
)


def captured(data: bytes) -> Capture:
    capture = Capture(LIMITS.output_bytes)
    capture.add(data)
    return capture


def concluded(
    report: dict[str, Any],
    *,
    killed_for: Reason | None = None,
    usage: GroupUsage | None = None,
    sample: Usage | None = None,
    disk_full: bool = False,
    stdout: bytes = b"",
    stderr: bytes = b"",
) -> ExecutionResult:
    """What is concluded from this evidence, in a sandbox with `LIMITS`."""
    ending = RawResult(
        report=report,
        killed_for=killed_for,
        stdout=captured(stdout),
        stderr=captured(stderr),
        sample=sample or Usage(),
        duration_s=1.5,
    )
    return build_result(
        ending,
        usage or GroupUsage(),
        LIMITS,
        disk_full=disk_full,
        timings=TIMINGS,
        isolation=Isolation.ISOLATED,
    )


def exited(code: int) -> dict[str, Any]:
    return EXITED_WELL | {"ended": code << 8}


def signalled(number: int) -> dict[str, Any]:
    return EXITED_WELL | {"ended": int(number)}


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_a_program_that_ends_by_itself_completed_with_its_exit_code(code: int) -> None:
    result = concluded(exited(code))

    assert (result.exit_code, result.signal) == (code, None)
    assert result.reason is Reason.COMPLETED
    assert result.limits_hit == ()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_a_signal_that_no_limit_sent_is_named(number: signal.Signals) -> None:
    result = concluded(signalled(number))

    assert (result.exit_code, result.signal) == (None, number)
    assert result.reason is Reason.SIGNALLED


@pytest.mark.parametrize("reason", KILLED_BY_US)
def test_what_we_killed_was_killed_for_our_reason(reason: Reason) -> None:
    result = concluded({}, killed_for=reason)

    assert (result.exit_code, result.signal) == (None, signal.SIGKILL)
    assert result.reason is reason


def test_a_program_that_failed_as_we_killed_it_was_still_killed_for_our_reason() -> None:
    result = concluded(exited(1), killed_for=Reason.TIMED_OUT)

    assert result.exit_code == 1
    assert result.reason is Reason.TIMED_OUT


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        (Reason.TIMED_OUT, "wall_s"),
        (Reason.CPU_TIME, "cpu_s"),
        (Reason.OUT_OF_MEMORY, "memory_mb"),
    ],
)
def test_a_kill_for_a_limit_says_which_limit(reason: Reason, limit: LimitName) -> None:
    assert concluded({}, killed_for=reason).limits_hit == (limit,)


def test_a_kill_for_too_many_processes_says_so() -> None:
    result = concluded({}, killed_for=Reason.TOO_MANY_PROCESSES, sample=Usage(processes=9))

    assert result.limits_hit == ("processes",)


def test_a_kill_for_a_full_box_on_the_hosts_disk_says_so() -> None:
    result = concluded(
        {}, killed_for=Reason.DISK_FULL, sample=Usage(disk_bytes=LIMITS.disk_mb << 21)
    )

    assert result.limits_hit == ("disk_mb",)


def test_a_cancelled_program_hit_no_limit() -> None:
    assert concluded({}, killed_for=Reason.CANCELLED).limits_hit == ()


@pytest.mark.parametrize(
    ("evidence", "reason", "limit"),
    [
        ({"usage": GroupUsage(oom_kills=1)}, Reason.OUT_OF_MEMORY, "memory_mb"),
        ({"usage": GroupUsage(refused_forks=1)}, Reason.TOO_MANY_PROCESSES, "processes"),
        ({"sample": Usage(processes=8)}, Reason.TOO_MANY_PROCESSES, "processes"),
        ({"disk_full": True}, Reason.DISK_FULL, "disk_mb"),
    ],
    ids=["memory", "forks refused", "threads seen", "disk"],
)
def test_a_limit_explains_a_failure_and_is_only_noted_in_a_success(
    evidence: dict[str, Any], reason: Reason, limit: LimitName
) -> None:
    failed = concluded(exited(1), **evidence)
    coped = concluded(exited(0), **evidence)

    assert (failed.reason, failed.limits_hit) == (reason, (limit,))
    assert (coped.reason, coped.limits_hit) == (Reason.COMPLETED, (limit,))


def test_the_kernel_ending_a_process_for_its_processor_time_is_that_limit() -> None:
    result = concluded(signalled(signal.SIGXCPU) | {"cpu_s": 11.0})

    assert result.reason is Reason.CPU_TIME
    assert result.limits_hit == ("cpu_s",)


def test_a_program_that_sends_sigxcpu_to_itself_has_not_used_up_its_processor_time() -> None:
    result = concluded(signalled(signal.SIGXCPU) | {"cpu_s": 0.1})

    assert result.reason is Reason.SIGNALLED
    assert (result.signal, result.limits_hit) == (signal.SIGXCPU, ())


def test_a_kill_by_the_hard_limit_of_processor_time_is_told_by_what_was_used() -> None:
    over = concluded(signalled(signal.SIGKILL), usage=GroupUsage(cpu_s=10.1))
    under = concluded(signalled(signal.SIGKILL), usage=GroupUsage(cpu_s=9.9))

    assert over.reason is Reason.CPU_TIME
    assert under.reason is Reason.SIGNALLED


def test_memory_is_the_likelier_cause_of_a_failure_than_the_disk() -> None:
    result = concluded(exited(1), usage=GroupUsage(oom_kills=1, refused_forks=1), disk_full=True)

    assert result.reason is Reason.OUT_OF_MEMORY
    assert result.limits_hit == ("memory_mb", "processes", "disk_mb")


def test_too_much_output_is_noted_and_does_not_explain_a_failure() -> None:
    result = concluded(exited(1), stdout=b"x" * 11)

    assert result.reason is Reason.COMPLETED
    assert result.limits_hit == ("output_bytes",)
    assert (result.stdout_dropped_bytes, result.truncated) == (1, True)


def test_a_program_that_could_not_start_says_why_after_what_is_on_stderr() -> None:
    report = exited(127) | {"start_failed": "nope: No such file or directory"}

    result = concluded(report)

    assert result.reason is Reason.COULD_NOT_START
    assert result.exit_code == 127
    assert result.stderr == "assay: nope: No such file or directory\n"


def test_pid_1_killed_for_want_of_memory_is_that_limit_and_no_mystery() -> None:
    result = concluded({}, usage=GroupUsage(oom_kills=1))

    assert result.reason is Reason.OUT_OF_MEMORY
    assert result.signal == signal.SIGKILL


def test_a_cell_that_died_by_no_doing_of_ours_is_a_lost_sandbox() -> None:
    with pytest.raises(SandboxUnavailableError) as caught:
        concluded({})

    assert caught.value.dispatch == "outcome_unknown"


@pytest.mark.parametrize("status", [127, 10**30, "0"])
def test_an_end_that_no_process_has_is_a_lost_sandbox(status: object) -> None:
    with pytest.raises(SandboxUnavailableError, match="protocol"):
        concluded(EXITED_WELL | {"ended": status})


@pytest.mark.parametrize("report", [{}, {"ended": 126 << 8}], ids=["died", "left"])
def test_a_program_that_was_never_begun_is_not_said_to_have_completed(
    report: dict[str, Any],
) -> None:
    # A limit that could not be set, a lock that could not be closed: the worker says so.
    with pytest.raises(SandboxUnavailableError, match="too large") as caught:
        concluded(report | {"setup_failed": "OverflowError('too large')"})

    assert caught.value.dispatch == "never_started"


def test_the_group_is_believed_before_the_processes() -> None:
    report = exited(0) | {"cpu_s": 1.0, "grown_kb": 10}
    usage = GroupUsage(cpu_s=2.0, peak_memory_bytes=4096)

    result = concluded(report, usage=usage, sample=Usage(cpu_s=3.0, memory_bytes=1 << 20))

    assert (result.cpu_s, result.peak_memory_bytes) == (2.0, 4096)


@pytest.mark.parametrize(
    ("sample", "cpu_s", "memory_bytes"),
    [
        (Usage(cpu_s=0.5, memory_bytes=100), 1.0, 10 << 10),
        (Usage(cpu_s=3.0, memory_bytes=1 << 20), 3.0, 1 << 20),
    ],
    ids=["PID 1 saw more", "the watch saw more"],
)
def test_without_a_group_whoever_saw_more_is_believed(
    sample: Usage, cpu_s: float, memory_bytes: int
) -> None:
    result = concluded(exited(0) | {"cpu_s": 1.0, "grown_kb": 10}, sample=sample)

    assert (result.cpu_s, result.peak_memory_bytes) == (cpu_s, memory_bytes)


def test_a_result_carries_its_output_its_times_and_where_it_ran() -> None:
    result = concluded(exited(0), stdout=b"out\xff", stderr=b"err")

    assert (result.stdout_bytes, result.stderr_bytes) == (b"out\xff", b"err")
    assert (result.duration_s, result.timings) == (1.5, TIMINGS)
    assert (result.backend, result.isolation) == ("native", Isolation.ISOLATED)
