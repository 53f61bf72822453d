"""`assay run` and what goes with it, from outside, with a scripted model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from assay.contracts.errors import ExitCode

ASSAY = (sys.executable, "-m", "assay")
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a * b\n"
FORGED = "import os\n\nos._exit(0)\n"
SMALL = {"facts": {"local": True, "small": True, "tool_calls": False}}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "test_calc.py").write_text(TEST)
    return folder


def a_model(folder: Path, *sources: str, **more: Any) -> str:
    path = folder / "script.jsonl"
    lines = [SMALL, *({"text": f"```python\n{source}```", **more} for source in sources)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return f"scripted:{path}"


def environment(folder: Path) -> dict[str, str]:
    state = {"XDG_STATE_HOME": str(folder / "state"), "ASSAY_SANDBOX__POOL_SIZE": "0"}
    return {**os.environ, **state, "NO_COLOR": "1"}


def assay(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ASSAY, *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def run(folder: Path, model: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    goal = ("run", "Write calc.py with add(a, b)", "--workspace", folder / "workspace")
    return assay(folder, *goal, "--tests", "test_calc.py", "--model", model, "--yes", *words)


def test_a_goal_is_proven_shown_certified_and_proven_again(tmp_path: Path, workspace: Path) -> None:
    events = tmp_path / "events.jsonl"

    done = run(tmp_path, a_model(tmp_path, WRONG, RIGHT), "--events", events)

    assert done.returncode == 0, done.stderr
    assert "Accepted, proven" in done.stdout
    assert "+    return a + b" in done.stdout
    assert (workspace / "calc.py").read_text() == RIGHT
    kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()]
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_ended"
    (certificate,) = (workspace / ".assay").glob("*.certificate.json")

    again = assay(tmp_path, "verify", certificate)
    replayed = assay(tmp_path, "replay", certificate.name.partition(".")[0])

    assert (again.returncode, again.stdout.split()[0]) == (0, "verified")
    assert replayed.returncode == 0
    assert "the same as recorded" in replayed.stdout


@pytest.mark.slow
def test_a_changed_file_and_a_changed_certificate_are_told_apart(
    tmp_path: Path, workspace: Path
) -> None:
    run(tmp_path, a_model(tmp_path, RIGHT))
    (certificate,) = (workspace / ".assay").glob("*.certificate.json")

    (tmp_path / "elsewhere").mkdir()
    elsewhere = assay(tmp_path / "elsewhere", "verify", certificate)
    (workspace / "calc.py").write_text(WRONG)
    changed = assay(tmp_path, "verify", certificate)
    certificate.write_text(certificate.read_text().replace("proven", "ran"))
    tampered = assay(tmp_path, "verify", certificate)

    assert elsewhere.returncode == 0, elsewhere.stdout
    assert "not repeated: that the checks fail on the untouched files" in elsewhere.stdout
    assert (changed.returncode, changed.stdout.split()[0]) == (1, "changed")
    assert tampered.returncode == 5


@pytest.mark.slow
def test_json_is_one_object_with_the_outcome(tmp_path: Path, workspace: Path) -> None:
    done = run(tmp_path, a_model(tmp_path, WRONG, RIGHT), "--json")

    outcome = json.loads(done.stdout)
    assert outcome["outcome"] == "accepted"
    assert outcome["grade"] == "proven"
    assert outcome["attempts"] == 2
    assert outcome["test_matrix"]["tests"] == {"test_calc.py::test_add": ["failed", "passed"]}
    assert Path(outcome["certificate"]).parent.parent == workspace
    assert outcome["cost"]["calls"] == 2


@pytest.mark.usefixtures("workspace")
def test_what_is_not_accepted_ends_with_one_and_can_be_had(tmp_path: Path) -> None:
    done = run(tmp_path, a_model(tmp_path, WRONG), "--attempts", "1")
    shown = assay(tmp_path, "show", "--files", tmp_path / "best")

    assert done.returncode == 1
    assert "0 of 1 test pass" in done.stdout
    assert shown.returncode == 0
    assert (tmp_path / "best" / "calc.py").read_text() == WRONG
    assert not (tmp_path / "workspace" / "calc.py").exists()


@pytest.mark.usefixtures("workspace")
def test_tampering_ends_with_five_and_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, a_model(tmp_path, FORGED), "--attempts", "1", "--json")

    assert done.returncode == 5
    assert "early_exit" in {finding["kind"] for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.usefixtures("workspace")
def test_a_budget_that_is_used_up_ends_with_three(tmp_path: Path) -> None:
    done = run(tmp_path, a_model(tmp_path, WRONG, WRONG), "--budget-tokens", "50")

    assert done.returncode == 3


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on_and_goes_on(tmp_path: Path, workspace: Path) -> None:
    model = a_model(tmp_path, WRONG, RIGHT, delay_s=3)
    words = ["run", "Write calc.py", "--workspace", workspace, "--tests", "test_calc.py"]
    process = subprocess.Popen(
        [*ASSAY, *words, "--model", model],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    deadline = time.monotonic() + 60
    while "attempt 1" not in said and time.monotonic() < deadline:
        said += process.stderr.readline()

    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    resumed = assay(tmp_path, "resume", rest.split()[-1], "--json", "--yes")

    assert process.returncode == 130
    assert "assay resume" in rest
    assert json.loads(resumed.stdout)["grade"] == "proven"
    assert (workspace / "calc.py").read_text() == RIGHT
    assert json.loads(resumed.stdout)["cost"]["calls"] == 2


def test_ctrl_c_instead_of_an_answer_writes_nothing_and_loses_nothing(
    tmp_path: Path, workspace: Path
) -> None:
    goal = ["run", "Write calc.py with add(a, b)", "--workspace", str(workspace)]
    more = ["--tests", "test_calc.py", "--model", a_model(tmp_path, RIGHT)]
    with pexpect.spawn(
        ASSAY[0],
        [*ASSAY[1:], *goal, *more],
        cwd=str(tmp_path),
        env={**environment(tmp_path), "TERM": "xterm"},
        encoding="utf-8",
        timeout=100,
        dimensions=(40, 120),
    ) as terminal:
        terminal.expect(r"\[Y/n\]: ")
        # Again, as a person would: between the question and the reading of the answer, the first
        # one may go unheard.
        unheard = True
        while unheard:
            terminal.sendintr()
            told = [r"continue with: assay resume (\S+)", pexpect.TIMEOUT]
            unheard = bool(terminal.expect(told, timeout=20))
        name = terminal.match.group(1)
        terminal.expect(pexpect.EOF)

    assert terminal.exitstatus == ExitCode.INTERRUPTED
    assert not (workspace / "calc.py").exists()
    assert (
        json.loads(assay(tmp_path, "resume", name, "--json", "--yes").stdout)["grade"] == "proven"
    )
    assert (workspace / "calc.py").read_text() == RIGHT


@pytest.mark.slow
def test_a_model_that_is_gone_leaves_a_run_to_go_on_with(tmp_path: Path, workspace: Path) -> None:
    model = a_model(tmp_path, WRONG)
    script = tmp_path / "script.jsonl"
    broken = {"error": "unavailable", "message": "gone fishing", "repeat": True}
    script.write_text(f"{script.read_text()}\n{json.dumps(broken)}")

    done = run(tmp_path, model, "--json")
    name = json.loads(done.stdout)["run"]
    script.write_text(
        f"{script.read_text().rpartition(chr(10))[0]}\n"
        + json.dumps({"text": f"```python\n{RIGHT}```"})
    )
    resumed = assay(tmp_path, "resume", name, "--json", "--yes")

    assert done.returncode == 4
    assert json.loads(done.stdout)["outcome"] == "failed"
    assert f"assay resume {name}" in done.stderr
    assert json.loads(resumed.stdout)["grade"] == "proven"
    assert (workspace / "calc.py").read_text() == RIGHT


@pytest.mark.slow
def test_resuming_what_has_ended_changes_nothing(tmp_path: Path, workspace: Path) -> None:
    first = json.loads(run(tmp_path, a_model(tmp_path, RIGHT), "--json").stdout)
    (workspace / "calc.py").write_text("# edited since\n")

    again = assay(tmp_path, "resume", first["run"], "--json")

    assert again.returncode == 0
    assert json.loads(again.stdout)["certificate"] == first["certificate"]
    assert (workspace / "calc.py").read_text() == "# edited since\n"


def test_a_goal_from_a_pipe_in_the_current_folder_writes_nothing_unasked(
    tmp_path: Path, workspace: Path
) -> None:
    model = a_model(tmp_path, RIGHT)

    done = subprocess.run(
        [*ASSAY, "run", "-", "--tests", "test_calc.py", "--model", model, "--json"],
        cwd=workspace,
        env=environment(tmp_path),
        input="Write calc.py with add(a, b)\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert json.loads(done.stdout)["grade"] == "proven", done.stderr
    assert f"nothing is written into {workspace}: without a terminal" in done.stderr
    assert [path.name for path in workspace.iterdir()] == ["test_calc.py"]
    assert "Write calc.py with add(a, b)" in assay(tmp_path, "runs").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", ""), "the goal is empty"),
        (("run", "@nowhere.md"), "cannot be read from"),
        (("run", "x", "--workspace", "nowhere"), "there is no folder"),
        (("run", "x", "--workspace", "workspace", "--tests", "no.py"), "there is no test"),
        (("run", "x", "--model", "scripted:nowhere"), "cannot read the script"),
        (("run", "x", "--model", "nobody:x"), "nobody"),
        (("run", "x", "--attempts", "0"), "attempts"),
        (("run", "x", "--timeout", "-1"), "timeout"),
        (("run", "x", "--budget-usd", "-1"), "usd"),
        (("run", "x", "--check", "pytest '"), "quotation"),
        (("run", "x", "--backend", "moon"), "backend"),
        (("run", "x", "--screening", "maybe"), "screening"),
        (("run", "x", "--events", "nowhere/at/all"), "cannot write events"),
        (("resume", "nothing"), "run"),
        (("replay", "nothing"), "run"),
        (("show", "nothing"), "run"),
        (("verify", "nothing.json"), "cannot read"),
        (("verify", "workspace/test_calc.py"), "not a certificate"),
    ],
)
@pytest.mark.usefixtures("workspace")
def test_wrong_words_get_one_line_and_a_hint(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = assay(tmp_path, *words)

    assert done.returncode == 2, done.stderr
    error, hint = done.stderr.strip().splitlines()[-2:]
    assert error.startswith("error: ")
    assert said in error.lower()
    assert hint.startswith("hint: ")
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "state").glob("assay/runs/*"))
