import base64
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from assay.cli.sandbox import _check_source, exit_code, result_fields
from assay.contracts.errors import UsageError
from assay.contracts.execution import ExecutionResult, Reason, Timings
from tests.doubles.fake_sandbox import answer_with

LIMITS = frozenset(
    {
        Reason.CPU_TIME,
        Reason.OUT_OF_MEMORY,
        Reason.TOO_MANY_PROCESSES,
        Reason.DISK_FULL,
        Reason.OUTPUT_LIMIT,
        Reason.CANCELLED,
    }
)


def a_result(**words: Any) -> ExecutionResult:
    return replace(answer_with(), **words)


def test_the_fields_have_the_names_of_the_result() -> None:
    told = result_fields(a_result())

    names = {field.name for field in fields(ExecutionResult)}
    properties = {
        name for name, value in vars(ExecutionResult).items() if isinstance(value, property)
    }
    assert names <= told.keys()
    assert told.keys() - names <= properties
    assert told["timings"].keys() == {field.name for field in fields(Timings)}


def test_the_fields_are_json_and_come_back_with_the_same_values() -> None:
    result = a_result(
        exit_code=None,
        signal=9,
        reason=Reason.OUT_OF_MEMORY,
        limits_hit=("memory_mb",),
        stdout_dropped_bytes=5,
    )

    told = json.loads(json.dumps(result_fields(result)))

    assert (told["exit_code"], told["signal"], told["reason"]) == (None, 9, "out_of_memory")
    assert (told["limits_hit"], told["truncated"]) == (["memory_mb"], True)
    assert (told["backend"], told["isolation"]) == ("fake", "none")


def test_output_that_is_text_is_told_once() -> None:
    told = result_fields(a_result(stdout_bytes="é\n".encode(), stderr_bytes=b""))

    assert (told["stdout"], told["stderr"]) == ("é\n", "")
    assert (told["stdout_bytes"], told["stderr_bytes"]) == (None, None)
    assert not {"stdout_base64", "stderr_base64"} & told.keys()


def test_output_that_is_no_text_is_not_lost() -> None:
    told = json.loads(json.dumps(result_fields(a_result(stdout_bytes=b"a\xff\x00"))))

    assert told["stdout"] == "a\ufffd\x00"
    assert base64.b64decode(told["stdout_base64"]) == b"a\xff\x00"
    assert told["stdout_bytes"] == told["stdout_base64"]
    assert "stderr_base64" not in told


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_of_a_program_is_passed_through(code: int) -> None:
    assert exit_code(a_result(exit_code=code)) == code


def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    assert exit_code(a_result(exit_code=None, signal=11, reason=Reason.SIGNALLED)) == 128 + 11


@pytest.mark.parametrize("reason", sorted(LIMITS))
def test_a_program_ended_for_a_limit_was_killed(reason: Reason) -> None:
    assert exit_code(a_result(exit_code=None, signal=9, reason=reason)) == 137


@pytest.mark.parametrize("ended", [(None, 9), (1, None), (0, None)])
def test_a_program_that_ran_out_of_time_says_so_however_it_ended(
    ended: tuple[int | None, int | None],
) -> None:
    code, number = ended

    result = a_result(exit_code=code, signal=number, reason=Reason.TIMED_OUT)

    assert exit_code(result) == 124


@pytest.mark.parametrize("source", [b"", b" \t\r\n\n", b"\x0c"])
def test_a_source_without_a_word_in_it_is_refused(source: bytes) -> None:
    with pytest.raises(UsageError, match=r"'x\.py' is empty") as caught:
        _check_source("x.py", source)

    assert caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        b"\xff\xfep\x00",
        b"print('\xe9')",
        b"x = 1\ny = 2\nz = '\xc3'",
        b"# coding: utf-8\n'\xff'",
        b"# coding: klingon\n",
        b"\xef\xbb\xbf# coding: latin-1\n",
    ],
    ids=["UTF-16", "Latin-1", "late", "declared", "unknown encoding", "at odds with its mark"],
)
def test_a_source_that_python_could_not_read_is_refused(source: bytes) -> None:
    with pytest.raises(UsageError, match=r"'x\.py' is not valid") as caught:
        _check_source("x.py", source)

    assert "encoding" in caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        b"pass",
        "print('é')".encode(),
        b"\xef\xbb\xbfpass",
        b"# coding: latin-1\nprint('\xe9')",
        b"this is no Python, and Python will say so",
    ],
    ids=["ASCII", "UTF-8", "UTF-8 with a mark", "declared Latin-1", "syntax error"],
)
def test_a_source_that_python_can_read_is_accepted(source: bytes) -> None:
    _check_source("x.py", source)
