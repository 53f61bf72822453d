"""What `assay run` cannot work on is refused at once, in one line with a hint, by exit code 2."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASSAY = (sys.executable, "-m", "assay")
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
RIGHT = "def add(a, b):\n    return a + b\n"
GOAL = "Write calc.py with add(a, b)"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "test_calc.py").write_text(TEST)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "script.jsonl"
    facts = {"facts": {"local": True, "small": True, "tool_calls": False}}
    lines = [facts, {"text": f"```python\n{RIGHT}```"}]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return f"scripted:{path}"


def environment(folder: Path) -> dict[str, str]:
    state = {"XDG_STATE_HOME": str(folder / "state"), "ASSAY_SANDBOX__POOL_SIZE": "0"}
    return {**os.environ, **state, "NO_COLOR": "1"}


def run(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ASSAY, "run", GOAL, *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def complaint(tmp_path: Path, *words: str | Path) -> str:
    """The error, after what must hold for any complaint: nothing was begun for it."""
    done = run(tmp_path, *words)
    match = re.fullmatch(r"error: (?P<error>.+)\nhint: (?P<hint>.+)\n", done.stderr)
    assert match, done.stderr
    assert done.returncode == 2
    assert done.stdout == ""
    assert not any((tmp_path / "state").rglob("run.json"))
    return match["error"]


@pytest.mark.parametrize("glob", ["", "/", "../**", "src/../../x", "/etc/*", "~/x"])
def test_what_may_be_changed_is_in_the_workspace(
    glob: str, tmp_path: Path, workspace: Path, model: str
) -> None:
    said = complaint(tmp_path, "--workspace", workspace, "--allow", glob, "--model", model)

    assert said == f"--allow {glob!r} names nothing in the workspace"


@pytest.mark.parametrize("name", ["", "nothing.py", "../script.jsonl", "/etc/passwd"])
def test_tests_are_files_of_the_workspace(
    name: str, tmp_path: Path, workspace: Path, model: str
) -> None:
    said = complaint(tmp_path, "--workspace", workspace, "--tests", name, "--model", model)

    assert said == f"there is no test {name!r} in the workspace"


def test_a_test_is_no_link(tmp_path: Path, workspace: Path, model: str) -> None:
    (workspace / "test_calc.py").rename(tmp_path / "test_calc.py")
    (workspace / "test_calc.py").symlink_to(tmp_path / "test_calc.py")

    said = complaint(
        tmp_path, "--workspace", workspace, "--tests", "test_calc.py", "--model", model
    )

    assert said == "the test 'test_calc.py' is a link, and links are not followed"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_the_place_of_certificates_is_looked_at_before_any_work(
    kind: str, tmp_path: Path, workspace: Path, model: str
) -> None:
    place = workspace / ".assay"
    if kind == "link":
        place.symlink_to(tmp_path)
    else:
        place.write_text("")

    said = complaint(tmp_path, "--workspace", workspace, "--model", model)

    assert "is a link or a file" in said


def test_a_folder_of_the_system_is_no_workspace(tmp_path: Path, model: str) -> None:
    said = complaint(tmp_path, "--workspace", "/proc/self", "--model", model)

    assert said.startswith("the workspace '/proc/self' cannot be ")


def test_a_workspace_without_a_bottom_is_refused(
    tmp_path: Path, workspace: Path, model: str
) -> None:
    folder = os.open(workspace, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)

    try:
        said = complaint(tmp_path, "--workspace", workspace, "--model", model)
    finally:
        # Python's own way to remove a folder does not get that far down either.
        subprocess.run(["rm", "-rf", workspace], check=True)  # noqa: S607 - found on the path

    assert "nested too deeply" in said or "cannot be read" in said


@pytest.mark.slow
def test_special_files_of_the_person_are_passed_over_in_silence(
    tmp_path: Path, workspace: Path, model: str
) -> None:
    (workspace / "password").symlink_to("/etc/passwd")
    os.mkfifo(workspace / "pipe")

    done = run(
        tmp_path, "--workspace", workspace, "--tests", "test_calc.py", "--model", model, "--json"
    )

    outcome = json.loads(done.stdout)
    assert outcome["grade"] == "proven"
    assert outcome["findings"] == []


@pytest.mark.slow
def test_events_that_cannot_be_written_do_not_end_the_run(
    tmp_path: Path, workspace: Path, model: str
) -> None:
    words = ("--workspace", workspace, "--tests", "test_calc.py", "--model", model)

    done = run(tmp_path, *words, "--events", "/dev/full")

    assert done.returncode == 0
    assert done.stderr.count("events are no longer written") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_workspace_that_is_taken_away_is_not_made_again(
    tmp_path: Path, workspace: Path, model: str
) -> None:
    script = Path(model.removeprefix("scripted:"))
    script.write_text(script.read_text().replace('"text"', '"delay_s": 3, "text"'))
    words = ("--workspace", workspace, "--tests", "test_calc.py", "--model", model, "--yes")
    with subprocess.Popen(
        [*ASSAY, "run", GOAL, *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        # Now it is read, and the model thinks.
        assert any(line.startswith("plan:") for line in iter(process.stderr.readline, ""))
        shutil.rmtree(workspace)
        said = process.communicate(timeout=100)[1]

    assert process.returncode == 2
    assert "cannot be used: No such file or directory\nhint: `assay apply" in said
    assert not workspace.exists()


def test_the_home_of_an_unknown_account_is_a_bad_path(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ASSAY, "run", "goal", "--model", "scripted:~no-such-user/x", "--check", "true"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"},
        timeout=100,
    )

    assert done.returncode == 2, done.stderr
    assert "error: '~no-such-user/x' names the home of an account" in done.stderr
    assert "Traceback" not in done.stderr
