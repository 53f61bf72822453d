"""`assay sandbox run --workspace` from outside."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = (sys.executable, "-m", "assay", "sandbox", "run")
CHANGE = "open('a.txt', 'a').write('more\\n'); open('plot.json', 'w').write('{}')"


def run(*words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "a.txt").write_text("one\n")
    return place


def test_changes_are_told_and_not_made(folder: Path) -> None:
    done = run("--workspace", folder, "--diff", "-", stdin=f"{CHANGE}; print('done')")

    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert "2 files changed in the copy of" in done.stderr
    assert "  M a.txt  text/plain, 9 bytes" in done.stderr
    assert "  A plot.json  application/json, 2 bytes" in done.stderr
    assert "+more" in done.stderr
    assert (folder / "a.txt").read_text() == "one\n"


def test_changes_are_made_with_apply_and_artifacts_are_saved(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    done = run("--workspace", folder, "--apply", "--artifacts", out, "--json", "-", stdin=CHANGE)

    told = json.loads(done.stdout)
    assert told["applied"]
    assert told["changes"] == [
        {"path": "a.txt", "kind": "modified"},
        {"path": "plot.json", "kind": "added"},
    ]
    assert [one["media_type"] for one in told["artifacts"]] == ["text/plain", "application/json"]
    assert (folder / "a.txt").read_text() == (out / "a.txt").read_text() == "one\nmore\n"
    assert (folder / "plot.json").exists()


def test_half_done_work_is_not_applied(folder: Path) -> None:
    source = f"{CHANGE}\nwhile True: pass"

    done = run("--workspace", folder, "--apply", "--timeout", "0.5", "-", stdin=source)

    assert done.returncode == 124
    assert "not applied: the program was stopped before it finished" in done.stderr
    assert (folder / "a.txt").read_text() == "one\n"


def test_names_made_by_a_program_are_harmless_to_a_terminal(folder: Path) -> None:
    source = r"open('\x1b[2Jgone\n  A fake', 'w').close(); open('\u202egnp.exe', 'w').close()"

    done = run("--workspace", folder, "-", stdin=source)

    assert "\x1b" not in done.stderr
    assert "\u202e" not in done.stderr
    assert '"\\u001b[2Jgone\\n  A fake"' in done.stderr


@pytest.mark.parametrize("words", [("--diff",), ("--apply",), ("--artifacts", "out")])
def test_what_needs_a_folder_says_so(words: tuple[str, ...]) -> None:
    done = run(*words, "-", stdin="pass")

    assert done.returncode == 2
    assert done.stderr.endswith("hint: add --workspace DIR\n")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("--workspace", tmp_path / "nothing", "-", stdin="pass")

    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_an_artifact_does_not_write_over_a_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "plot.json").write_text("mine")

    done = run("--workspace", folder, "--artifacts", out, "-", stdin=CHANGE)

    assert done.returncode == 2
    assert "plot.json: is there already" in done.stderr
    assert (out / "plot.json").read_text() == "mine"
