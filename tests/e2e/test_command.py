"""The `assay` command from outside: help, colours, engines, the self-test, and Python's own way."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pexpect
import pytest

import assay
from assay.contracts.errors import ExitCode
from assay.selftest.conformance import REQUIREMENTS
from assay.settings.load import SandboxSettings

ASSAY = (sys.executable, "-m", "assay")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def run(*words: str | Path, runtime_dir: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as from a pipe, with a terminal's wish for colours."""
    env = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "TERM": "xterm-256color"}
    own = {"ASSAY_RUNTIME_DIR": str(runtime_dir)} if runtime_dir else {}
    return subprocess.run(
        [*ASSAY, *words], env=env | own, capture_output=True, text=True, timeout=110, check=False
    )


def on_a_terminal(*words: str, env: dict[str, str]) -> str:
    own = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "TERM": "xterm-256color"}
    with pexpect.spawn(
        ASSAY[0], [*ASSAY[1:], *words], env=own | env, timeout=60, encoding="utf-8"
    ) as terminal:
        seen = terminal.read()
    return seen or ""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), ("doctor", "sandbox")),
        (("sandbox",), ("run", "selftest", "list", "clean")),
        (("sandbox", "run"), ("--timeout", "--memory-mb", "--network", "--json", "PROGRAM")),
        (("sandbox", "selftest"), ("--suite", "--backend")),
    ],
)
def test_help_names_what_there_is(words: tuple[str, ...], named: tuple[str, ...]) -> None:
    done = run(*words, "--help")

    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith(f"Usage: {' '.join(['assay', *words])} ")
    assert [word for word in named if word not in done.stdout] == []
    assert "\x1b" not in done.stdout


def test_every_option_has_a_sentence() -> None:
    lines = run("sandbox", "run", "--help").stdout.partition("Options:")[2].splitlines()

    described = [line.strip() for line in lines if line.strip()]
    assert len(described) >= 13
    assert [line for line in described if line.startswith("--") and "  " not in line] == []


def test_the_version_is_that_of_the_package() -> None:
    done = run("--version")

    assert (done.stdout, done.returncode) == (
        f"assay, version {metadata.version('assay-agent')}\n",
        0,
    )


def test_the_command_of_the_package_is_the_same(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "assay"

    done = subprocess.run(
        [command, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout == run("--version").stdout


@pytest.mark.parametrize("words", [(), ("sandbox",)])
def test_a_command_without_a_word_shows_its_help_and_is_wrong(words: tuple[str, ...]) -> None:
    done = run(*words)

    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.startswith("Usage: assay")


@pytest.mark.parametrize(("env", "colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_an_error_has_colours_on_a_terminal_that_wants_them(
    env: dict[str, str], *, colours: bool
) -> None:
    seen = on_a_terminal("sandbox", "run", "absent.py", env=env)

    assert "error: " in seen.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert ("\x1b" in seen) == colours


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}])
def test_the_output_of_a_program_gets_no_colours_of_ours(env: dict[str, str]) -> None:
    seen = on_a_terminal("sandbox", "run", "--", "echo", "plain", env=env)

    assert seen == "plain\r\n"


def test_where_nothing_runs_nothing_is_listed_and_nothing_cleaned_up(tmp_path: Path) -> None:
    told = [
        run("sandbox", *words, runtime_dir=tmp_path / "runtime")
        for words in (("list", "--json"), ("list",), ("clean",))
    ]

    assert [done.stdout for done in told] == [
        "[]\n",
        "no sandbox engine is running, and none was left behind\n",
        "nothing was left behind\n",
    ]
    assert {(done.stderr, done.returncode) for done in told} == {("", 0)}


async def test_a_running_engine_is_in_the_list(tmp_path: Path) -> None:
    settings = SandboxSettings(preload=(), pool_size=0, runtime_dir=tmp_path / "runtime")

    async with assay.open_sandbox(settings=settings):
        rows = json.loads(run("sandbox", "list", "--json", runtime_dir=settings.runtime_dir).stdout)
        text = run("sandbox", "list", runtime_dir=settings.runtime_dir).stdout

    (row,) = rows
    assert row.keys() == {"backend", "engine", "state", "owner_pid", "processes", "age_s"}
    assert (row["state"], row["processes"]) == ("running", 3)
    assert text.startswith(f"{row['engine']}  running  owner {row['owner_pid']}  3 processes")


@pytest.mark.slow
def test_the_self_test_reports_every_promise(tmp_path: Path) -> None:
    done = run(
        "sandbox", "selftest", "--suite", "conformance", "--json", runtime_dir=tmp_path / "runtime"
    )

    report = json.loads(done.stdout)
    names = [(check["group"], check["name"]) for check in report["checks"]]
    assert names == [(check.group, check.name) for check in REQUIREMENTS]
    assert len(names) >= 40
    counts = dict.fromkeys(("passed", "failed", "not_promised"), 0)
    for check in report["checks"]:
        counts[check["status"]] += 1
        assert bool(check["detail"]) == (check["status"] != "passed")
    assert {status: report[status] for status in counts} == counts
    assert done.returncode == (1 if counts["failed"] else 0)
    assert done.stderr == ""
    assert (report["backend"], report["isolation"]) == ("native", "isolated")


@pytest.mark.parametrize(
    ("arguments", "stream"),
    [
        (("models",), "stdout"),
        (("map",), "stdout"),
        (("run", "--help"), "stdout"),
        (("run", ""), "stderr"),
    ],
)
def test_a_reader_that_is_gone_is_never_a_verdict(arguments: tuple[str, ...], stream: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writer}

    done = subprocess.run(
        [*ASSAY, *arguments],
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=False,
        **streams,
    )
    os.close(writer)

    assert done.returncode == ExitCode.CLOSED_PIPE


async def test_the_python_way_in_three_lines() -> None:
    async with assay.open_sandbox() as box:
        result = await box.run(assay.PythonCode(source=b"print(6*7)"))

    assert (result.stdout, result.exit_code, result.succeeded) == ("42\n", 0, True)


def test_the_exit_code_stays_ours_whatever_happens_while_the_interpreter_ends() -> None:
    program = (
        "import atexit, os, sys\n"
        "atexit.register(os.abort)\n"  # As threads of the SDK do it, sometimes.
        "sys.modules['e2b'] = sys\n"
        "from assay.cli.errors import leave\n"
        "print('the result')\n"
        "leave(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout) == (3, "the result\n")


def test_a_server_that_cannot_start_says_so_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "assay", "executor", "serve", "--host", "0.0.0.0"],  # noqa: S104 - it is refused
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.count("and there is no TLS") == 1
