"""What Tab completes at the prompt of a chat."""

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from assay.cli.chat.commands import COMMANDS
from assay.cli.chat.repl import open_completer


def completed(text: str) -> list[str]:
    """Return what a line becomes by each completion."""
    found = open_completer(tuple(COMMANDS)).get_completions(Document(text), CompleteEvent())
    return [text[: len(text) + one.start_position] + one.text for one in found]


def test_a_command_is_completed_with_its_slash() -> None:
    assert completed("/lo") == ["/load"]
    assert "/package" in completed("/")
    assert completed("lo") == []


def test_file_names_are_completed_after_commands_that_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sales.csv").write_text("a")
    monkeypatch.chdir(tmp_path)
    assert completed("/load sa") == ["/load sales.csv"]
    assert completed("/cost sa") == []
