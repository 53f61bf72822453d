import re

import pytest

from assay.contracts import errors
from assay.contracts.errors import (
    AssayError,
    Dispatch,
    ExitCode,
    FileTooLargeError,
    IsolationUnavailableError,
    MissingExtraError,
    NotARegularFileError,
    PathOutsideWorkspaceError,
    SandboxUnavailableError,
    UsageError,
    WorkspaceError,
    WorkspaceFileNotFoundError,
    WorkspaceFullError,
)

FAMILIES = {
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, AssayError)
}


def test_every_error_of_ours_stands_in_the_tree_at_the_top_of_the_module() -> None:
    drawn = re.findall(r"\w+Error", errors.__doc__ or "")

    assert sorted(error.__name__ for error in FAMILIES) == sorted(drawn)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), ExitCode.USAGE),
        (MissingExtraError("charts", extra="data"), ExitCode.USAGE),
        (WorkspaceError("x"), ExitCode.USAGE),
        (FileTooLargeError("x", size_bytes=2, max_bytes=1), ExitCode.USAGE),
        (IsolationUnavailableError("x"), ExitCode.INFRASTRUCTURE),
        (SandboxUnavailableError("x", dispatch="never_started"), ExitCode.INFRASTRUCTURE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AssayError) else value.name,
)
def test_who_must_act_decides_the_exit_code(error: AssayError, code: ExitCode) -> None:
    assert error.exit_code == code


def test_exit_codes_are_told_apart_by_a_shell() -> None:
    codes = [code.value for code in ExitCode]

    assert (ExitCode.ACCEPTED, ExitCode.USAGE, ExitCode.INTERRUPTED) == (0, 2, 130)
    assert len(set(codes)) == len(codes)
    assert all(0 <= code < 256 for code in codes)


def test_a_hint_is_kept_beside_the_message_and_not_in_it() -> None:
    error = UsageError("that will not do", hint="do this")

    assert str(error) == "that will not do"
    assert error.hint == "do this"


def test_an_error_without_a_hint_has_an_empty_one() -> None:
    assert UsageError("that will not do").hint == ""


def test_a_missing_extra_says_how_to_install_it() -> None:
    error = MissingExtraError("drawing charts", extra="data")

    assert str(error) == "drawing charts needs an extra that is not installed"
    assert error.hint == "run `pip install 'assay-agent[data]'`"
    assert error.extra == "data"


@pytest.mark.parametrize("dispatch", ["never_started", "outcome_unknown"])
def test_a_lost_sandbox_says_whether_its_program_may_have_run(dispatch: Dispatch) -> None:
    assert SandboxUnavailableError("gone", dispatch=dispatch).dispatch == dispatch


def test_a_file_that_is_too_large_tells_both_sizes() -> None:
    error = FileTooLargeError("too large", size_bytes=11, max_bytes=10)

    assert (error.size_bytes, error.max_bytes) == (11, 10)


@pytest.mark.parametrize(
    "refusal",
    [
        PathOutsideWorkspaceError,
        WorkspaceFileNotFoundError,
        NotARegularFileError,
        FileTooLargeError,
        WorkspaceFullError,
    ],
)
def test_a_refused_file_operation_is_not_taken_for_a_lost_sandbox(
    refusal: type[WorkspaceError],
) -> None:
    assert issubclass(refusal, WorkspaceError)
    assert not issubclass(refusal, SandboxUnavailableError)
