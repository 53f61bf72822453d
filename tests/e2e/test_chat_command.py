"""`assay chat` and `assay sessions`, from outside: at a terminal, and with one message."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.support.requirements import require
from tests.support.wheels import make_wheel, only_from

ASSAY = (sys.executable, "-m", "assay")
PROMPT = re.escape("\x1b[?2004h")
"""What a prompt begins with: from here on, what is pasted is marked as such."""
MEAN = "I read it.\n```python\ndf = pd.read_csv('sales.csv')\nprint(df.price.mean())\n```"
PLOT = "```python\ndf.price.plot()\n```"
SLEEP = "```python\nkept = 41\nimport time\nprint('going to', 'sleep')\ntime.sleep(600)\n```"
CSV = "region,price\nnorth,10\nsouth,20\neast,33\n"


def script(folder: Path, *replies: str | dict[str, Any]) -> str:
    path = folder / "script.jsonl"
    lines = [reply if isinstance(reply, dict) else {"text": reply} for reply in replies]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return f"scripted:{path}"


def environment(folder: Path) -> dict[str, str]:
    state = {"XDG_STATE_HOME": str(folder / "state"), "ASSAY_SANDBOX__POOL_SIZE": "0"}
    return {**os.environ, **state, "NO_COLOR": "1", "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}


def assay(folder: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ASSAY, *words],
        cwd=folder,
        env={**environment(folder), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def at_a_terminal(
    folder: Path, *words: str, timeout: float = 60, **more: str
) -> "pexpect.spawn[str]":
    return pexpect.spawn(
        ASSAY[0],
        [*ASSAY[1:], "chat", *words],
        cwd=str(folder),
        env={**environment(folder), **more},
        encoding="utf-8",
        timeout=timeout,
        dimensions=(40, 120),
    )


def say(child: "pexpect.spawn[str]", message: str) -> None:
    child.expect(PROMPT)
    child.send(f"{message}\r")


def leave(child: "pexpect.spawn[str]") -> None:
    say(child, "/quit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "sales.csv").write_text(CSV)
    return tmp_path


def sessions(folder: Path) -> list[dict[str, Any]]:
    return json.loads(assay(folder, "sessions", "list", "--json").stdout)


def test_one_message_is_answered_with_thought_code_and_observation_apart(home: Path) -> None:
    model = script(home, MEAN, "It is 21.")
    ended = assay(home, "chat", "mean?", "--file", "sales.csv", "--model", model, "--json")
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["thought"], answer["observation"]) == ("I read it.", "21.0")
    assert answer["code"].startswith("df = pd.read_csv")
    assert answer["answer"] == "It is 21."


def test_a_session_goes_on_with_its_files_and_variables(home: Path) -> None:
    first = script(home, MEAN, "It is 21.")
    assay(home, "chat", "mean?", "--file", "sales.csv", "--model", first)
    second = script(home, PLOT, "There.")
    ended = assay(home, "chat", "plot", "--session", "last", "--model", second, "--json")
    (figure,) = json.loads(ended.stdout)["artifacts"]
    (session,) = sessions(home)
    picture = Path(session["folder"]) / "artifacts" / figure["name"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert session["turns"] == 2


def test_a_conversation_at_a_terminal(home: Path) -> None:
    child = at_a_terminal(home, "--model", script(home, MEAN, "It is 21."))
    child.expect("session ")
    say(child, "/load sales.csv")
    child.expect("3 rows, 2 columns")
    say(child, "what is the mean?")
    child.expect("21.0")
    child.expect("It is 21")
    say(child, "/cost")
    child.expect("2 replies")
    say(child, "/nonsense")
    child.expect("unknown command /nonsense")
    say(child, "/export out.ipynb")
    child.expect("written to")
    leave(child)
    notebook = json.loads((home / "out.ipynb").read_text())
    assert any(cell["cell_type"] == "code" for cell in notebook["cells"])


def test_a_path_that_leads_nowhere_is_told_and_the_conversation_goes_on(home: Path) -> None:
    child = at_a_terminal(home, "--model", script(home, "Hello."))
    say(child, "/load ~no-such-user/a.csv")
    child.expect("'~no-such-user/a.csv' names the home of an account")
    leave(child)


def test_an_interrupted_cell_is_lost_and_the_session_is_not(home: Path) -> None:
    replies = (
        "```python\nbefore = 7\n```",
        "Set.",
        SLEEP,
        "```python\nprint('before is', before, 'kept' in globals())\n```",
        "Done.",
    )
    child = at_a_terminal(home, "--model", script(home, *replies))
    say(child, "set before")
    child.expect("Set")
    say(child, "sleep")
    child.expect("going to sleep")
    child.sendintr()
    child.expect("interrupted")
    say(child, "and now?")
    child.expect("before is 7 False")
    leave(child)


def test_a_second_chat_on_the_same_session_is_refused(home: Path) -> None:
    child = at_a_terminal(home, "--model", script(home, "Hello."))
    child.expect("session ")
    (session,) = sessions(home)
    assert session["in_use"]
    second = assay(home, "chat", "hi", "--session", session["id"], "--model", script(home, "Hi."))
    assert second.returncode == 2
    assert "another process works on the session" in second.stderr
    say(child, "hello")
    child.expect("Hello")
    leave(child)


def test_what_was_said_before_a_kill_is_there_after_it(home: Path) -> None:
    model = script(home, MEAN, "It is 21.", SLEEP)
    child = at_a_terminal(home, "--file", "sales.csv", "--model", model)
    say(child, "mean?")
    child.expect("It is 21")
    say(child, "sleep")
    child.expect("going to sleep")
    child.kill(signal.SIGKILL)
    child.close()
    again = script(home, "```python\nprint(df.price.max())\n```", "33.")
    exported = assay(home, "sessions", "export", sessions(home)[0]["id"], "talk.md")
    assert exported.returncode == 0, exported.stderr
    assert "going to sleep\nThe cell was cut off." in (home / "talk.md").read_text()
    ended = assay(home, "chat", "max?", "--session", "last", "--model", again)
    assert ended.returncode == 0, ended.stderr
    assert "was restarted" in ended.stdout
    assert "33" in ended.stdout


def test_packages_are_installed_for_a_session_and_missing_ones_are_hinted_at(home: Path) -> None:
    make_wheel(home / "index", "thing")
    model = script(home, "```python\nimport thing\n```", "Missing.")
    more = {**only_from(home / "index"), "ASSAY_SANDBOX__PACKAGES_DIR": str(home / "packages")}
    child = at_a_terminal(home, "--model", model, **more)
    say(child, "use thing")
    child.expect("/package thing")
    child.expect("assay chat --package thing")
    child.expect("Missing")
    say(child, "/package nosuch-thing")
    child.expect("there is no package named")
    say(child, "/package thing==1.*")
    child.expect(re.escape("Cells can import thing==1.*."))
    leave(child)
    # A session keeps its packages; given again they change nothing.
    once = ("chat", "hello?", "--session", "last", "--package", "thing==1.*", "--json")
    model = script(home, "```python\nimport thing\nthing.main()\n```", "Hi.")
    ended = assay(home, *once, "--model", model, **more)
    assert json.loads(ended.stdout)["observation"] == "hello"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("chat", "--json"), "--json needs a message"),
        (("chat", "hi", "--session", "nobody"), "no sessions yet"),
        (("chat", "hi", "--model", "nonsense:x"), "nonsense"),
        (("chat", "hi", "--file", "missing.csv", "--model", "SCRIPT"), "no file 'missing.csv'"),
        (("chat", "hi", "--file", "/dev/zero", "--model", "SCRIPT"), "a device or a pipe"),
        (("chat", " ", "--model", "SCRIPT"), "message is empty"),
        (("sessions", "delete", "nobody", "--yes"), "no sessions yet"),
        (("sessions", "export", "nobody", "x.md"), "no sessions yet"),
    ],
)
def test_bad_input_is_one_line_with_a_hint(
    home: Path, words: tuple[str, ...], complaint: str
) -> None:
    model = script(home, "Hi.")
    ended = assay(home, *(model if word == "SCRIPT" else word for word in words))
    assert ended.returncode == 2, ended.stderr
    assert complaint in ended.stderr
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)  # the model shares the processors with whatever else runs
def test_a_whole_conversation_with_the_embedded_model(home: Path) -> None:
    require("local-model", available=find_spec("xllamacpp") is not None, why="not installed")
    child = at_a_terminal(home, "--model", "local", timeout=300)
    say(child, "/load sales.csv")
    child.expect("3 rows, 2 columns")
    say(child, "What is the mean of the price column in sales.csv?")
    child.expect(r"\b21(\.0)?\b")
    say(child, "Draw a bar chart of price by region.")
    child.expect(r"figure: \S+\.png")
    leave(child)
    (session,) = sessions(home)
    (picture, *_) = (Path(session["folder"]) / "artifacts").glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    question = "What was the mean price that you computed earlier?"
    ended = assay(home, "chat", question, "--session", "last", "--model", "local", "--json")
    assert re.search(r"\b21(\.0)?\b", json.loads(ended.stdout)["answer"]), ended.stdout
