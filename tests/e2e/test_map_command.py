"""`assay map` from outside."""

import subprocess
import sys
from pathlib import Path


def run(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assay", "map", *words],
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_both_pictures_are_shown_in_letters(tmp_path: Path) -> None:
    done = run(home=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "┌─ contracts ─" in done.stdout
    assert "goal ─▶ plan ─▶ code" in done.stdout


def test_the_name_of_a_file_says_how_it_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "map.svg"

    done = run("--what", "agent", "--out", str(out), home=tmp_path)

    assert done.stdout == f"written to {out}\n"
    assert out.read_text().startswith("<svg ")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = run("--what", "agent", "--out", str(tmp_path / "absent" / "x.svg"), home=tmp_path)

    assert done.returncode == 2
    assert "cannot be written: No such file" in done.stderr
