"""The log of commands, and their short forms, from outside."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

KEY = "sk-" + "a1B2" * 10


def run(*words: str, state: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(state.parent), "XDG_STATE_HOME": str(state)}
    return subprocess.run(
        [sys.executable, "-m", "assay", *words],
        env=env | {"NO_COLOR": "1"} | more,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def log_of(state: Path) -> list[dict[str, Any]]:
    files = (state / "assay" / "logs").glob("assay-*.jsonl")
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_a_command_is_in_the_log_with_how_it_ended(tmp_path: Path) -> None:
    done = run("sessions", "list", state=tmp_path)

    began, ended = log_of(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (began["message"], began["words"]) == ("began", "sessions list")
    assert (ended["message"], ended["exit_code"]) == ("ended", 0)


def test_an_error_is_in_the_log_and_a_key_is_not(tmp_path: Path) -> None:
    done = run("sessions", "export", KEY, "x.md", state=tmp_path, OPENAI_API_KEY=KEY)

    log = log_of(tmp_path)
    assert done.returncode == 2
    assert [record["level"] for record in log] == ["info", "error", "info"]
    assert log[-1]["exit_code"] == 2
    assert KEY not in json.dumps(log)


def test_help_leaves_no_log(tmp_path: Path) -> None:
    run("sessions", "--help", state=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_verbose_shows_the_log_on_the_screen(tmp_path: Path) -> None:
    done = run("--verbose", "sessions", "list", state=tmp_path)

    assert "command: began words=--verbose sessions list" in done.stderr.replace("'", "")
    assert "command: ended exit_code=0" in done.stderr
    assert done.stdout == "no sessions yet; `assay chat` starts one\n"


def test_a_state_folder_that_cannot_be_written_costs_the_log_only(tmp_path: Path) -> None:
    state = tmp_path / "file"
    state.write_text("")

    quiet = run("sessions", "list", state=state)
    loud = run("--verbose", "sessions", "list", state=state)

    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert "no log is written" in loud.stderr


def test_the_short_form_of_run_is_carried_out(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"facts": {"local": true, "small": true, "tool_calls": false}}\n')

    done = run("--goal", "write a.py", "--model", f"scripted:{script}-absent", state=tmp_path)

    assert (
        f"note: this is short for `assay run --model scripted:{script}-absent -- 'write a.py'`"
        in (done.stderr)
    )
    assert done.returncode == 2
    assert "absent" in done.stderr.splitlines()[-2]


def test_an_empty_goal_is_named_in_the_short_form_too(tmp_path: Path) -> None:
    done = run("--goal", "", state=tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith("error: the goal is empty\n")


def test_a_short_form_beside_a_command_is_refused(tmp_path: Path) -> None:
    done = run("--model", "local", "chat", state=tmp_path)

    assert done.returncode == 2
    assert "hint: write: assay chat --model local" in done.stderr
