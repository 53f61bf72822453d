"""Log of commands, as JSON lines in the state folder; never contains a secret.

A failed write to the log does not fail the command; `--verbose` reports it.
"""

import json
import logging
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, cast

from assay.contracts.errors import AssayError

FOLDER: Final = "logs"
_NAME: Final = "assay-{day}.jsonl"
_LARGEST_FILE: Final = 8 << 20
_MOST_FILES: Final = 14
_LONGEST_TEXT: Final = 4_000
_LONGEST_TRACEBACK: Final = 16_000
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_SECRET_NAMES: Final = (
    "authorization", "cookie", "api_key", "apikey", "api-key", "token", "password", "secret",
)  # fmt: skip
_HIDDEN: Final = "[redacted]"

_LOG: Final = logging.getLogger("assay.command")
_PACKAGE: Final = logging.getLogger("assay")


class LogFolder:
    """Log files: one per day, readable by the owner only, with a maximum number of files."""

    def __init__(self, folder: Path, *, today: Callable[[], str] | None = None) -> None:
        self.folder = folder
        self._today = today or (lambda: datetime.now(UTC).strftime("%Y-%m-%d"))
        self._day = ""
        self._descriptor = -1

    def append(self, line: bytes) -> None:
        """Write a line in one system call, so that parallel commands do not mix.

        Raises:
            OSError: If it cannot be written.
        """
        if self._day != self._today() or os.fstat(self._descriptor).st_size > _LARGEST_FILE:
            self._open()
        os.write(self._descriptor, line)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._day = -1, ""

    def _open(self) -> None:
        from assay.files import make_folder

        self.close()
        missing = [each for each in (self.folder, *self.folder.parents) if not each.is_dir()]
        if missing and missing[-1].parent == Path(self.folder.anchor):
            # Do not create a missing home folder for a log.
            raise FileNotFoundError(f"there is no folder {str(missing[-1])!r}")
        make_folder(self.folder)
        day = self._today()
        path = self.folder / _NAME.format(day=day)
        if path.exists() and path.stat().st_size > _LARGEST_FILE:
            path.replace(self.folder / _NAME.format(day=f"{day}-earlier"))
        for old in sorted(self.folder.glob(_NAME.format(day="*")))[: -_MOST_FILES + 1]:
            if old != path:
                old.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._day = day


class JsonLines(logging.Handler):
    """Writes records to the state folder, which is looked up at the first record."""

    def __init__(self, open_log: Callable[[], tuple[LogFolder, Sequence[str]]]) -> None:
        super().__init__()
        self._open_log = open_log
        self._folder: LogFolder | None = None
        self._secrets: tuple[str, ...] = ()
        self._held: logging.LogRecord | None = None
        self.trouble = ""
        """Reason why nothing is written; empty if the log works."""

    def hide(self, values: Sequence[str]) -> None:
        """Redact these values from all later records."""
        self._secrets = (*self._secrets, *values)
        self.setFormatter(JsonFormatter(self._secrets))

    def hold(self, record: logging.LogRecord) -> None:
        """Delay this record until the next one: a command that only shows help writes no log."""
        self._held = record

    def emit(self, record: logging.LogRecord) -> None:
        if self.trouble:
            return
        held, self._held = self._held, None
        try:
            if self._folder is None:
                self._folder, secrets = self._open_log()
                self.hide(secrets)
            for each in (held, record):
                if each is not None:
                    self._folder.append(self.format(each).encode() + b"\n")
        except (OSError, AssayError) as error:
            self.trouble = str(error)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
        super().close()


class _RedactingFormatter(logging.Formatter):
    """Redacts known values, and everything that looks like a secret."""

    def __init__(self, known: Sequence[str] = ()) -> None:
        from assay.text.redaction import redact

        super().__init__()
        # The longest first: a secret may contain another one.
        self._known = sorted({value for value in known if value}, key=len, reverse=True)
        self._redact_patterns = redact

    def redact(self, text: str) -> str:
        for value in self._known:
            text = text.replace(value, _HIDDEN)
        return self._redact_patterns(text)

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the extra fields of a record: ids of runs and sessions, numbers."""
        extra = {name: each for name, each in record.__dict__.items() if name not in _STANDARD}
        return self.plain(extra)

    def plain(self, value: Any) -> Any:
        """Return a value as JSON without secrets."""
        match value:
            case None | bool() | int() | float():
                return value
            case Mapping():
                pairs = cast("Mapping[object, object]", value)
                return {
                    str(name): _HIDDEN if _is_secret(str(name)) else self.plain(item)
                    for name, item in pairs.items()
                }
            case list() | tuple():
                return [self.plain(item) for item in cast("Sequence[object]", value)]
            case _:
                return self.redact(str(value)[:_LONGEST_TEXT])


def _is_secret(name: str) -> bool:
    # "tokens" is a count; a "token" is a secret.
    lowered = name.lower().replace("tokens", "")
    return any(word in lowered for word in _SECRET_NAMES)


class JsonFormatter(_RedactingFormatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.plain(record.getMessage()),
            "pid": record.process,
            **self.fields(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1]))
            fields["traceback"] = self.redact(trace[-_LONGEST_TRACEBACK:])
        return json.dumps(fields)


class ScreenFormatter(_RedactingFormatter):
    """Formats a record as a line for people: time, source, message, and extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        behind = "".join(f" {name}={value}" for name, value in self.fields(record).items())
        source = record.name.removeprefix("assay.")
        text = self.redact(record.getMessage()) + behind
        # Control characters could move the cursor.
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        return f"{when} {record.levelname.lower()} {source}: {text}"


class CommandLog:
    """Log of one command, from its arguments to its exit code."""

    def __init__(self, words: Sequence[str], *, verbose: bool) -> None:
        self._started = time.monotonic()
        self._file = JsonLines(_open_log)
        self._handlers: list[logging.Handler] = [self._file]
        if verbose:
            screen = logging.StreamHandler(sys.stderr)
            screen.setFormatter(ScreenFormatter())
            self._handlers.append(screen)
        for handler in self._handlers:
            _PACKAGE.addHandler(handler)
        self._level = _PACKAGE.level
        _PACKAGE.setLevel(logging.INFO)
        # Joined, so that redaction recognizes the value after an option like `--token`.
        written = {"words": shlex.join(words)}
        record = _LOG.makeRecord(
            _LOG.name, logging.INFO, __file__, 0, "began", (), None, extra=written
        )
        self._file.hold(record)
        for handler in self._handlers[1:]:
            handler.handle(record)

    def ended(self, exit_code: int) -> None:
        """Log the end of the command."""
        took = round(time.monotonic() - self._started, 3)
        _LOG.info("ended", extra={"exit_code": int(exit_code), "duration_s": took})

    def failed(self, error: Exception, *, trouble: str = "") -> None:
        """Log the error that ended the command; a defect of Assay includes its traceback.

        `trouble` is the failure of the machine, if that is the reason.
        """
        fields = {"error": type(error).__name__}
        if reason := str(error) if isinstance(error, AssayError) else trouble:
            _LOG.error("%s", reason, extra=fields)
        else:
            _LOG.critical("%s", error, extra=fields, exc_info=error)

    def close(self) -> None:
        """Restore the logger."""
        for handler in self._handlers:
            _PACKAGE.removeHandler(handler)
            if handler is self._file and self._file.trouble and len(self._handlers) > 1:
                print(f"no log is written: {self._file.trouble}", file=sys.stderr)  # noqa: T201 - the logger itself failed
            handler.close()
        _PACKAGE.setLevel(self._level)


class _Untouched(QueueHandler):
    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # The record stays in this process, so it need not be serialized.
        return record


@contextmanager
def written_beside() -> Generator[None]:
    """Write the log in a separate thread, so that the event loop does not wait for a disk."""
    handlers = tuple(_PACKAGE.handlers)
    records: SimpleQueue[Any] = SimpleQueue()
    door = _Untouched(records)
    writer = QueueListener(records, *handlers, respect_handler_level=True)
    for handler in handlers:
        _PACKAGE.removeHandler(handler)
    _PACKAGE.addHandler(door)
    writer.start()
    try:
        yield
    finally:
        writer.stop()
        _PACKAGE.removeHandler(door)
        for handler in handlers:
            _PACKAGE.addHandler(handler)


def hide_secrets(values: Sequence[str]) -> None:
    """Redact secrets that were unknown when the log was opened, such as those of a workspace."""
    for handler in _PACKAGE.handlers:
        if isinstance(handler, JsonLines):
            handler.hide(values)


def _open_log() -> tuple[LogFolder, tuple[str, ...]]:
    from assay.settings.load import load_settings
    from assay.settings.types import secrets_in

    # Keys of a project are redacted too.
    settings = load_settings(project=Path.cwd())
    return LogFolder(settings.state_dir / FOLDER), tuple(secrets_in(settings))
