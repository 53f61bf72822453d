"""The log: JSON lines, private, bounded, without secrets, and never in a command's way."""

import errno
import json
import logging
import secrets
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from assay.cli.errors import machine_trouble
from assay.contracts.errors import UsageError
from assay.settings.load import Settings
from assay.settings.sections import ForeignServerSettings
from assay.settings.types import secrets_in
from assay.telemetry.logs import (
    CommandLog,
    JsonFormatter,
    JsonLines,
    LogFolder,
    ScreenFormatter,
    hide_secrets,
)

KEY = "not-shaped-like-a-key-at-all"


def a_record(message: str = "began", **fields: object) -> logging.LogRecord:
    logger = logging.getLogger("assay.tests")
    return logger.makeRecord(logger.name, logging.INFO, "here", 1, message, (), None, extra=fields)


def written(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter([KEY]).format(record)
    assert "\n" not in line
    return json.loads(line)


def test_a_record_is_one_line_with_its_ids() -> None:
    told = written(a_record("turn\nended", session="calm-owl-1a2b", turn=3))

    assert (told["message"], told["session"], told["turn"]) == ("turn\nended", "calm-owl-1a2b", 3)
    assert (told["level"], told["logger"]) == ("info", "assay.tests")
    assert told["at"].endswith("Z")


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (f"asked with {KEY}", {}),
        ("asked", {"words": f"assay --model {KEY}"}),
        ("asked", {"headers": {"Authorization": "short"}}),
        ("asked", {"deep": [{"api_key": "short"}]}),
        ("asked", {"words": "assay sandbox run --token short"}),
        ("Authorization: Basic short", {}),
    ],
)
def test_a_secret_is_not_written(message: str, fields: dict[str, Any]) -> None:
    line = JsonFormatter([KEY]).format(a_record(message, **fields))

    assert KEY not in line
    assert "short" not in line
    assert "[redacted]" in line


def test_counted_tokens_are_no_secret() -> None:
    assert written(a_record(input_tokens=12))["input_tokens"] == 12


def test_a_traceback_is_written_without_secrets() -> None:
    record = a_record()
    with pytest.raises(ValueError, match="not-shaped") as raised:
        raise ValueError(f"cannot use {KEY}")
    record.exc_info = (raised.type, raised.value, raised.tb)

    told = written(record)

    assert "ValueError: cannot use [redacted]" in told["traceback"]


@pytest.mark.parametrize(
    ("error", "level", "traced"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/state/x"), "error", False),
        (ExceptionGroup("all", [PermissionError(errno.EACCES, "denied", "/x")]), "error", False),
        (UsageError("no such model"), "error", False),
        (KeyError("x"), "critical", True),
    ],
)
def test_only_a_defect_is_logged_with_its_traceback(
    error: Exception, level: str, *, traced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ASSAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    log = CommandLog(["serve"], verbose=False)

    log.failed(error, trouble=machine_trouble(error))
    log.close()

    (path,) = (tmp_path / "state" / "logs").iterdir()
    _, told = map(json.loads, path.read_text().splitlines())
    assert (told["level"], "traceback" in told) == (level, traced)
    assert told["error"] == type(error).__name__
    assert told["message"]


@pytest.mark.parametrize("earlier", [[], ["of-the-file"]])
def test_a_secret_that_is_known_late_is_hidden_from_then_on(
    earlier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    log = CommandLog(["run"], verbose=False)
    for message in earlier:
        logging.getLogger("assay.tests").info(message)

    hide_secrets([KEY])
    logging.getLogger("assay.tests").info("the key %s is refused", KEY)
    log.close()

    (path,) = (tmp_path / "state" / "logs").iterdir()
    assert KEY not in path.read_text()
    assert "the key [redacted] is refused" in path.read_text()


def test_secrets_are_found_wherever_the_settings_hold_them() -> None:
    server = ForeignServerSettings(command=("tool",), env={"KEY": SecretStr("of a server")})
    settings = Settings.model_validate(
        {"models": {"api_keys": {"OPENAI_API_KEY": "of a model"}}, "tools": {"mcp": {"x": server}}}
    )

    assert {"of a model", "of a server"} <= set(secrets_in(settings))


def test_files_are_for_their_owner_and_named_after_the_day(tmp_path: Path) -> None:
    log = LogFolder(tmp_path / "state" / "logs", today=lambda: "2026-03-01")

    log.append(b"{}\n")
    log.close()

    path = tmp_path / "state" / "logs" / "assay-2026-03-01.jsonl"
    assert path.read_bytes() == b"{}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_new_day_has_a_new_file_and_old_ones_go(tmp_path: Path) -> None:
    days = [f"2026-03-{day:02}" for day in range(1, 31)]
    now = [days[0]]
    log = LogFolder(tmp_path, today=lambda: now[0])

    for day in days:
        now[0] = day
        log.append(b"{}\n")
    log.close()

    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f"assay-{day}.jsonl" for day in days[-14:]]


def test_a_day_that_fills_its_file_keeps_the_latest(tmp_path: Path) -> None:
    log = LogFolder(tmp_path, today=lambda: "2026-03-01")
    line = b"x" * (1 << 20) + b"\n"

    for _ in range(30):
        log.append(line)
    log.close()

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"assay-2026-03-01.jsonl", "assay-2026-03-01-earlier.jsonl"}
    assert sum(sizes.values()) < 20 << 20


def test_no_folder_is_made_at_the_root_of_the_file_system() -> None:
    home = Path(f"/no-home-{secrets.token_hex(8)}")
    log = LogFolder(home / ".local" / "state" / "assay" / "logs")

    with pytest.raises(FileNotFoundError):
        log.append(b"{}\n")

    assert not home.exists()


def test_the_first_record_waits_for_a_second_one(tmp_path: Path) -> None:
    log = JsonLines(lambda: (LogFolder(tmp_path, today=lambda: "day"), [KEY]))

    log.hold(a_record("began"))
    before = list(tmp_path.iterdir())
    log.emit(a_record("ended"))
    log.close()

    lines = (tmp_path / "assay-day.jsonl").read_text().splitlines()
    assert before == []
    assert [json.loads(line)["message"] for line in lines] == ["began", "ended"]


def test_a_log_that_cannot_be_written_is_given_up_quietly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = JsonLines(lambda: (LogFolder(tmp_path / "file" / "logs"), [KEY]))

    log.emit(a_record())

    assert log.trouble


def test_settings_that_are_wrong_cost_the_log_and_nothing_else() -> None:
    def refuse() -> tuple[LogFolder, Any]:
        raise UsageError("there is no setting 'x'")

    log = JsonLines(refuse)
    log.emit(a_record())

    assert "no setting" in log.trouble


def test_the_screen_gets_no_escape_sequences_and_no_secrets() -> None:
    line = ScreenFormatter([KEY]).format(a_record(f"red \x1b[31m {KEY}", run="a\nb"))

    assert line.isprintable()
    assert KEY not in line
