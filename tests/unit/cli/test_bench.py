"""Wrong words to `assay bench` get one line, a hint, and leave nothing behind."""

import contextvars
from pathlib import Path

import pytest

from assay.cli.main import run
from assay.contracts.errors import ExitCode
from tests.support.exercises import simple_suite


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "nowhere"), "there is no suite"),
        (("run", "polyglot"), "bench pull polyglot"),
        (("run", "humaneval"), "--dataset"),
        (("run", "humaneval", "--dataset", "none"), "cannot read HumanEval"),
        (("run", "suite", "--languages", "cobol"), "unknown language"),
        (("run", "suite", "--shard", "5/4"), "there is no shard"),
        (("run", "suite", "--limit", "0"), "--limit"),
        (("run", "suite", "--attempts", "0"), "attempts must be"),
        (("run", "suite", "--model", "recorded:none"), "no replies"),
        (("run", "suite", "--only", "none"), "no exercise"),
        (("compare", "suite", "suite"), "holds no run"),
        (("report", "suite"), "holds no run"),
        (("replay", "suite", "--out", "x"), "holds no run"),
    ],
)
def test_wrong_words_get_one_line_and_a_hint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    told: str,
) -> None:
    simple_suite(tmp_path / "suite", 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Fixtures of a session may hold a loop open; a fresh context does not know of it.
    assert contextvars.Context().run(run, ["bench", *words]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert told in said
    assert "hint: " in said
    assert not (tmp_path / "x").exists()
    # The log of commands is all that is left.
    assert [place.name for place in (tmp_path / "state" / "assay").iterdir()] == ["logs"]
