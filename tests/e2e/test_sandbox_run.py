"""`assay sandbox run` from outside: what goes in, what comes out, and with which exit code."""

import base64
import json
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.execution import ExecutionResult

RUN = (sys.executable, "-m", "assay", "sandbox", "run")


def run(
    *words: str | Path, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*RUN, *words], input=stdin, cwd=cwd, capture_output=True, timeout=60, check=False
    )


def outcome(done: subprocess.CompletedProcess[bytes]) -> tuple[str, str, int]:
    return done.stdout.decode(), done.stderr.decode(), done.returncode


def a_program(folder: Path, source: str) -> Path:
    path = folder / "program.py"
    path.write_text(source)
    return path


def test_a_file_is_run_with_its_arguments(tmp_path: Path) -> None:
    program = a_program(tmp_path, "import sys\nprint(__name__, sys.argv, 6 * 7)")

    done = run(program, "--json", "-x", "a b")

    assert outcome(done) == ("__main__ ['program.py', '--json', '-x', 'a b'] 42\n", "", 0)


def test_a_program_is_read_from_stdin() -> None:
    done = run("-", "a", stdin=b"import sys\nprint(sys.argv, repr(sys.stdin.read()))")

    assert outcome(done) == ("['stdin.py', 'a'] ''\n", "", 0)


def test_any_program_is_run_with_its_own_options() -> None:
    done = run("--", "printf", "%s,", "--json", "--", "a b")

    assert outcome(done) == ("--json,--,a b,", "", 0)


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_of_a_program_is_that_of_the_command(tmp_path: Path, code: int) -> None:
    done = run(a_program(tmp_path, f"raise SystemExit({code})"))

    assert outcome(done) == ("", "", code)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_told_as_a_shell_tells_it(number: signal.Signals) -> None:
    done = run("--", "sh", "-c", f"kill -{int(number)} $$")

    assert outcome(done) == ("", "", 128 + number)


def test_a_program_that_runs_out_of_time_is_ended_and_keeps_its_output() -> None:
    done = run("--timeout", "0.5", "--", "sh", "-c", "echo before; exec sleep 600")

    assert outcome(done) == (
        "before\n",
        "assay: the program was killed after 0.5 s (--timeout)\n",
        124,
    )


@pytest.mark.parametrize(
    ("option", "limit", "source", "told"),
    [
        ("--memory-mb", "64", "x = b'x' * (200 << 20)", "more than 64 MB of memory (--memory-mb)"),
        ("--cpu-s", "0.2", "while True: pass", "more than 0.2 s of processor time (--cpu-s)"),
        (
            "--disk-mb",
            "1",
            "open('x', 'wb').write(b'x' * (2 << 20))",
            "more than 1 MB (--disk-mb)",
        ),
    ],
)
def test_a_limit_that_ended_a_program_is_named_with_its_option(
    tmp_path: Path, option: str, limit: str, source: str, told: str
) -> None:
    done = run(option, limit, a_program(tmp_path, source))

    assert done.returncode not in {0, 2, 4}
    assert done.stderr.decode().splitlines()[-1].endswith(told)


def test_a_traceback_of_the_program_is_the_programs_own(tmp_path: Path) -> None:
    done = run(a_program(tmp_path, "def f():\n    return 1 / 0\n\nf()\n"))

    assert done.returncode == 1
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert lines[:2] == [
        "Traceback (most recent call last):",
        '  File "program.py", line 4, in <module>',
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "assay" not in done.stderr.decode()


def test_a_program_that_is_not_there_is_told_in_one_line() -> None:
    done = run("--", "no-such-program")

    assert outcome(done) == ("", "assay: no-such-program: No such file or directory\n", 127)


def test_bytes_come_out_as_they_went_in() -> None:
    content = bytes(range(256)) * 1000

    done = run("--stdin", "-", "--", "cat", stdin=content)

    assert done.stdout == content


def test_a_file_is_what_a_program_reads(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"one\ntwo\n")

    done = run("--stdin", tmp_path / "input", "--", "wc", "-l")

    assert outcome(done) == ("2\n", "", 0)


def test_without_stdin_a_program_reads_nothing() -> None:
    done = run("--", "cat", stdin=b"not for the program")

    assert outcome(done) == ("", "", 0)


def test_variables_reach_the_program_and_no_others_do() -> None:
    script = "echo $A, $B, ${HOME}"

    done = run("--env", "A=1=2", "--env", "B=", "--", "sh", "-c", script)

    assert outcome(done) == ("1=2, , /tmp\n", "", 0)


def test_files_are_copied_into_the_workspace_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "where"
    folder.mkdir(parents=True)
    (folder / "data.bin").write_bytes(b"\xff\x00")
    (folder / "helper.py").write_text("def help(): return 'helped'")
    program = a_program(
        tmp_path, "import helper; print(helper.help(), open('data.bin', 'rb').read())"
    )

    done = run("--copy", folder / "data.bin", "--copy", folder / "helper.py", program)

    assert outcome(done) == ("helped b'\\xff\\x00'\n", "", 0)


def test_what_a_program_does_to_a_copy_the_original_does_not_feel(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.write_text("untouched")

    done = run("--copy", original, "--", "sh", "-c", "echo changed > original; rm -f /etc/passwd")

    assert done.returncode != 0
    assert original.read_text() == "untouched"


def test_each_stream_arrives_in_order_and_on_its_own_side() -> None:
    script = "for n in $(seq 2000); do echo $n; echo -$n >&2; done"

    done = run("--", "sh", "-c", script)

    assert done.stdout.decode().splitlines() == [str(number) for number in range(1, 2001)]
    assert done.stderr.decode().splitlines() == [str(-number) for number in range(1, 2001)]


def test_the_first_line_is_there_before_the_program_has_ended() -> None:
    with subprocess.Popen(
        [*RUN, "--", "sh", "-c", "echo running; exec sleep 600"], stdout=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        line = command.stdout.readline()
        running = command.poll() is None
        command.terminate()

    assert line == b"running\n"
    assert running


def test_a_reader_that_has_seen_enough_ends_the_command_without_a_word() -> None:
    script = "echo first; while true; do echo more; done"
    with subprocess.Popen(
        [*RUN, "--timeout", "30", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline() == b"first\n"
        command.stdout.close()
        complaints = command.stderr.read()

    assert complaints == b""
    assert command.returncode not in {0, 2}


def result_of(*words: str | Path, code: int = 0) -> dict[str, Any]:
    done = run("--json", *words)
    assert (done.stderr, done.returncode) == (b"", code)
    assert done.stdout.count(b"\n") == 1
    return json.loads(done.stdout)


def test_a_result_has_the_names_and_values_of_an_execution(tmp_path: Path) -> None:
    program = a_program(
        tmp_path, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)"
    )

    result = result_of(program, code=3)

    assert {field.name for field in fields(ExecutionResult)} <= result.keys()
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("out\n", "err\n", 3)
    assert (result["reason"], result["signal"], result["truncated"]) == ("completed", None, False)
    assert (result["backend"], result["limits_hit"]) == ("native", [])
    assert result["timings"].keys() == {"queue_s", "prepare_s", "run_s"}
    assert result["duration_s"] > 0
    assert result["peak_memory_bytes"] > 0


def test_a_result_with_output_that_is_no_text_is_still_json() -> None:
    result = result_of("--", "printf", r"\377\000\n")

    assert result["stdout"] == "\ufffd\x00\n"
    assert base64.b64decode(result["stdout_base64"]) == b"\xff\x00\n"


@pytest.mark.parametrize(
    ("words", "code", "reason", "number"),
    [
        (("--timeout", "0.5", "--", "sleep", "600"), 124, "timed_out", 9),
        (("--", "sh", "-c", "kill -9 $$"), 137, "signalled", 9),
        (("--", "no-such-program"), 127, "could_not_start", None),
    ],
)
def test_a_result_says_why_it_ended(
    words: tuple[str, ...], code: int, reason: str, number: int | None
) -> None:
    result = result_of(*words, code=code)

    assert (result["reason"], result["signal"]) == (reason, number)


def test_more_than_this_machine_has_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    done = run("--isolation", "machine", a_program(tmp_path, "print('ran')"))

    assert (done.stdout, done.returncode) == (b"", 2)
    assert done.stderr.startswith(b"error: no backend here gives the isolation 'machine'\nhint: ")


@pytest.mark.parametrize("words", [("--cpu-s", "1e20"), ("--processes", "99999999")])
def test_a_limit_beyond_any_machine_is_kept_or_refused_and_never_silent(
    tmp_path: Path, words: tuple[str, str]
) -> None:
    done = run(*words, a_program(tmp_path, "print('ran')"))

    if done.returncode == 0:
        assert done.stdout == b"ran\n"
        return
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")
