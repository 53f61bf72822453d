"""What is asked for wrongly is answered with one line and a hint, and exit code 2."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ASSAY = (sys.executable, "-m", "assay")
ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
RUN = ("sandbox", "run")
LIMITS = ("--timeout", "--cpu-s", "--memory-mb", "--processes", "--disk-mb")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program that is fine and several that are not."""
    (tmp_path / "good.py").write_text("print('ran')")
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "blank.py").write_bytes(b" \n\t\n")
    (tmp_path / "latin.py").write_bytes(b"print('\xe9')")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00\x01")
    (tmp_path / "directory").mkdir()
    return tmp_path


def complaint(
    *words: str, cwd: Path, env: dict[str, str] | None = None, stdin: bytes = b""
) -> tuple[str, str]:
    """The error and the hint, after what must hold for any complaint."""
    done = subprocess.run(
        [*ASSAY, *words],
        cwd=cwd,
        env=ENV | {"HOME": str(cwd)} | (env or {}),
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    told = done.stderr.decode()
    assert done.stdout == b""
    assert "Traceback" not in told
    assert "\x1b" not in told
    match = re.fullmatch(r"error: (?P<error>.+)\nhint: (?P<hint>.+)\n", told)
    assert match, told
    assert done.returncode == 2
    return match["error"], match["hint"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--backend", "jail", "good.py"), "unknown backend 'jail'"),
        (("--backend", "", "good.py"), "unknown backend ''"),
        (("--isolation", "total", "good.py"), "unknown isolation 'total'"),
        (("--isolation", "machine", "good.py"), "no backend here gives the isolation 'machine'"),
        (("--network", "all", "good.py"), "unknown network 'all'"),
    ],
)
def test_a_word_that_is_not_known_is_answered_with_those_that_are(
    folder: Path, words: tuple[str, ...], error: str
) -> None:
    told, hint = complaint(*RUN, *words, cwd=folder)

    assert told == error
    assert "native" in hint or "none" in hint


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("absent.py",), "no such file: 'absent.py'"),
        (("directory",), "'directory' is a directory"),
        (("good.py/below",), "cannot read 'good.py/below': Not a directory"),
        (("--copy", "absent", "good.py"), "no such file: 'absent'"),
        (("--copy", "directory", "good.py"), "'directory' is a directory"),
        (("--stdin", "absent", "good.py"), "no such file: 'absent'"),
        (("--json", "absent.py"), "no such file: 'absent.py'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    folder: Path, words: tuple[str, ...], error: str
) -> None:
    assert complaint(*RUN, *words, cwd=folder)[0] == error


@pytest.mark.parametrize("name", ["empty.py", "blank.py"])
def test_an_empty_program_is_refused(folder: Path, name: str) -> None:
    assert complaint(*RUN, name, cwd=folder)[0] == f"the program '{name}' is empty"


@pytest.mark.parametrize("name", ["latin.py", "binary.py"])
def test_a_source_that_is_not_utf_8_is_refused(folder: Path, name: str) -> None:
    error, hint = complaint(*RUN, name, cwd=folder)

    assert error.startswith(f"the program '{name}' is not valid UTF-8")
    assert "encoding" in hint


@pytest.mark.parametrize("source", [b"", b"print('\xe9')"], ids=["empty", "not UTF-8"])
def test_what_holds_for_a_file_holds_for_stdin(folder: Path, source: bytes) -> None:
    assert complaint(*RUN, "-", cwd=folder, stdin=source)[0].startswith("the program '-' is ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((option, "-1") for option in LIMITS),
        *(("--memory-mb", value) for value in ("0", "many", "", "1.5")),
        *(("--timeout", value) for value in ("0", "soon", "nan", "inf")),
    ],
)
def test_a_limit_that_is_no_positive_number_is_refused_by_its_name(
    folder: Path, option: str, value: str
) -> None:
    error, _ = complaint(*RUN, option, value, "good.py", cwd=folder)

    assert option in error


def test_a_number_with_more_digits_than_there_are_atoms_is_refused(folder: Path) -> None:
    complaint(*RUN, "--memory-mb", "9" * 400, "good.py", cwd=folder)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "nothing to run"),
        (("good.py", "--", "ls"), "give a file or a program after `--`, not both"),
        (("--",), "a command needs a program name"),
        (("--", ""), "a command needs a program name"),
        (("--env", "NAME", "good.py"), "invalid variable 'NAME'"),
        (("--env", "=value", "good.py"), "not an environment variable: ''"),
        (("--stdin", "-", "-"), "stdin cannot be both the program and its input"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    folder: Path, words: tuple[str, ...], error: str
) -> None:
    assert complaint(*RUN, *words, cwd=folder)[0] == error


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("sandbox", "run", "--nope", "x"), "no such option '--nope'", "assay sandbox run --help"),
        (("sandbox", "run", "--timeout"), "option '--timeout' requires", "--help"),
        (("sandbox", "nope"), "no such command 'nope'", "assay sandbox --help"),
        (("nope",), "no such command 'nope'", "assay --help"),
        (("--nope",), "no such option '--nope'", "assay --help"),
        (("sandbox", "list", "extra"), "got unexpected extra argument", "sandbox list --help"),
        (
            ("sandbox", "clean", "extra"),
            "nothing of the name 'extra' was left",
            "assay sandbox list",
        ),
        (("sandbox", "selftest", "--suite", "x"), "unknown suite 'x'", "conformance, hostile"),
        (("sandbox", "selftest", "--backend", "x"), "", "native"),
    ],
)
def test_a_command_line_that_is_not_understood_says_where_to_look(
    folder: Path, words: tuple[str, ...], error: str, hint: str
) -> None:
    told, where = complaint(*words, cwd=folder)

    assert told.startswith(error)
    assert hint in where


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({"ASSAY_SANDBOX__POOL_SIZ": "1"}, "there is no setting 'sandbox.pool_siz'"),
        ({"ASSAY_SANDBOX__POOL_SIZE": "-1"}, "setting sandbox.pool_size: "),
        ({"ASSAY_CONFIG": "absent.toml"}, "ASSAY_CONFIG names 'absent.toml'"),
        ({"ASSAY_CONFIG": "good.py"}, "cannot read the settings file 'good.py'"),
        ({"ASSAY_RUNTIME_DIR": "good.py"}, "the runtime folder 'good.py' "),
        ({"ASSAY_RUNTIME_DIR": "good.py/below"}, "the runtime folder 'good.py/below' "),
    ],
)
def test_a_setting_that_will_not_do_is_named(folder: Path, env: dict[str, str], error: str) -> None:
    assert complaint(*RUN, "good.py", cwd=folder, env=env)[0].startswith(error)
