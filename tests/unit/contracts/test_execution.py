import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pytest

from assay.contracts.errors import UsageError
from assay.contracts.execution import (
    Command,
    ExecutionResult,
    Isolation,
    Limits,
    Program,
    PythonCode,
    Reason,
    SandboxSpec,
)
from tests.doubles.fake_sandbox import answer_with

LIMITS = tuple(limit.name for limit in fields(Limits))
BUILDERS: tuple[Callable[..., Program], ...] = (
    partial(Command, argv=("true",)),
    partial(PythonCode, source=b"pass"),
)
either_program = pytest.mark.parametrize("build", BUILDERS, ids=["command", "python"])


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf])
def test_a_limit_that_is_not_finite_and_positive_is_refused_by_name(
    name: str, value: float
) -> None:
    with pytest.raises(
        UsageError, match=f"{name} must be above 0 and at most 1000000000000, not {value}"
    ) as caught:
        Limits(**{name: value})

    assert f"leave {name} out to get the default" in caught.value.hint


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_too_large_for_any_machine_is_refused_like_any_other(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Limits(**{name: 10**400})


@pytest.mark.parametrize("name", LIMITS)
def test_the_smallest_limit_is_a_limit(name: str) -> None:
    assert getattr(Limits(**{name: 1}), name) == 1


def test_limits_cannot_be_changed_once_they_are_promised() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().memory_mb = 1 << 20  # pyright: ignore[reportAttributeAccessIssue] - the point


def test_limits_that_are_replaced_are_checked_again() -> None:
    with pytest.raises(UsageError, match="wall_s"):
        replace(Limits(), wall_s=0)


@pytest.mark.parametrize("argv", [(), ("",), ("", "argument")])
def test_a_command_without_a_program_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="needs a program name") as caught:
        Command(argv=argv)

    assert "argv=" in caught.value.hint


def test_an_argument_may_be_empty() -> None:
    assert Command(argv=("printf", "")).argv == ("printf", "")


@pytest.mark.parametrize(
    "build",
    [
        lambda: Command(argv=("a\0b",)),
        lambda: Command(argv=("ls", "a\0b")),
        lambda: PythonCode(source=b"", filename="a\0b"),
        lambda: PythonCode(source=b"", args=("a\0b",)),
    ],
    ids=["program", "argument", "filename", "python argument"],
)
def test_a_nul_character_is_refused_before_the_kernel_would_cut_there(
    build: Callable[[], Program],
) -> None:
    with pytest.raises(UsageError, match="NUL"):
        build()


@either_program
@pytest.mark.parametrize(
    "env",
    [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}],
    ids=["no name", "equals sign", "NUL in name", "NUL in value"],
)
def test_what_cannot_be_a_variable_is_refused(
    build: Callable[..., Program], env: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="not an environment variable"):
        build(env=env)


@either_program
def test_a_value_may_hold_an_equals_sign_and_nothing_at_all(build: Callable[..., Program]) -> None:
    assert build(env={"A": "b=c", "D": ""}).env == {"A": "b=c", "D": ""}


@either_program
@pytest.mark.parametrize("cwd", ["/", "/etc", "..", "a/../../b", "a/.."])
def test_a_working_directory_outside_the_workspace_is_refused(
    build: Callable[..., Program], cwd: str
) -> None:
    with pytest.raises(UsageError, match="not inside the workspace") as caught:
        build(cwd=PurePosixPath(cwd))

    assert "relative to the workspace root" in caught.value.hint


@either_program
@pytest.mark.parametrize("cwd", ["", ".", "a/b", "..a", "a..b/c"])
def test_a_working_directory_inside_the_workspace_is_accepted(
    build: Callable[..., Program], cwd: str
) -> None:
    assert build(cwd=PurePosixPath(cwd)).cwd == PurePosixPath(cwd)


@either_program
def test_a_working_directory_with_a_nul_character_is_refused(build: Callable[..., Program]) -> None:
    with pytest.raises(UsageError):
        build(cwd=PurePosixPath("a\0b"))


@either_program
@pytest.mark.parametrize(
    "words",
    [{"env": {"A": "\ud800"}}, {"env": {"\ud800": "x"}}, {"cwd": PurePosixPath("\ud800")}],
    ids=["value", "name", "cwd"],
)
def test_text_that_no_file_system_can_hold_is_refused_and_not_sent(
    build: Callable[..., Program], words: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        build(**words)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Command(argv=("printf", "\ud800")),
        lambda: PythonCode(source=b"", filename="\ud800"),
    ],
    ids=["argument", "filename"],
)
def test_an_argument_that_no_program_can_be_given_is_refused(build: Callable[[], Program]) -> None:
    with pytest.raises(UsageError):
        build()


def test_bytes_that_are_not_utf_8_can_be_arguments() -> None:
    name = b"\xff".decode("utf-8", "surrogateescape")

    assert Command(argv=("cat", name)).argv == ("cat", name)


@either_program
@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf])
def test_a_timeout_that_is_not_finite_and_positive_is_refused(
    build: Callable[..., Program], timeout_s: float
) -> None:
    with pytest.raises(UsageError, match=f"timeout_s must be a positive number, not {timeout_s}"):
        build(timeout_s=timeout_s)


@either_program
def test_without_a_timeout_the_sandbox_decides(build: Callable[..., Program]) -> None:
    assert build().timeout_s is None


def a_result(**words: Any) -> ExecutionResult:
    return replace(answer_with(), **words)


def test_output_that_is_not_utf_8_is_kept_as_bytes_and_readable_as_text() -> None:
    result = a_result(stdout_bytes=b"a\xffb", stderr_bytes=b"\xc3\xa9\xc3")

    assert (result.stdout, result.stderr) == ("a\ufffdb", "é\ufffd")
    assert (result.stdout_bytes, result.stderr_bytes) == (b"a\xffb", b"\xc3\xa9\xc3")


@pytest.mark.parametrize(
    ("stdout_dropped_bytes", "stderr_dropped_bytes", "truncated"),
    [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, True)],
)
def test_a_result_is_truncated_when_either_stream_lost_something(
    *, stdout_dropped_bytes: int, stderr_dropped_bytes: int, truncated: bool
) -> None:
    result = a_result(
        stdout_dropped_bytes=stdout_dropped_bytes, stderr_dropped_bytes=stderr_dropped_bytes
    )

    assert result.truncated is truncated


@pytest.mark.parametrize("reason", list(Reason))
def test_only_a_completed_program_with_exit_code_0_succeeded(reason: Reason) -> None:
    assert a_result(exit_code=0, reason=reason).succeeded is (reason is Reason.COMPLETED)
    assert not a_result(exit_code=1, reason=reason).succeeded
    assert not a_result(exit_code=None, reason=reason).succeeded


@pytest.mark.parametrize("reason", list(Reason))
def test_only_the_wall_clock_times_a_program_out(reason: Reason) -> None:
    assert a_result(reason=reason).timed_out is (reason is Reason.TIMED_OUT)


def test_isolation_grows_from_none_to_a_machine_of_its_own() -> None:
    names = [grade.value for grade in sorted(Isolation, key=lambda grade: grade.rank)]

    assert names == ["none", "restricted", "isolated", "kernel", "machine"]


@pytest.mark.parametrize("given", list(Isolation))
@pytest.mark.parametrize("wanted", list(Isolation))
def test_a_grade_satisfies_itself_and_whatever_is_less(given: Isolation, wanted: Isolation) -> None:
    grades = ["none", "restricted", "isolated", "kernel", "machine"]

    assert given.satisfies(wanted) is (grades.index(given) >= grades.index(wanted))


@pytest.mark.parametrize(
    "host", ["https://example.org", "example.org/x", "", "a b", "-x", "example.org:", "*", "[::1]"]
)
def test_what_is_not_written_as_a_host_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="not a host") as caught:
        SandboxSpec(hosts=(host,))
    assert "example.org" in caught.value.hint


@pytest.mark.parametrize("host", ["example.org", "*.example.org", "example.org:8443", "10.0.0.1"])
def test_hosts_may_have_a_star_in_front_and_a_port_behind(host: str) -> None:
    assert SandboxSpec(hosts=(host,)).hosts == (host,)


@pytest.mark.parametrize("package", ["", "  ", "--index-url=x", "-e ."])
def test_an_option_is_not_a_package(package: str) -> None:
    with pytest.raises(UsageError, match="not a package"):
        SandboxSpec(packages=(package,))
