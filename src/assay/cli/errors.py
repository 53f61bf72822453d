"""Command-line runner: every error becomes one line with a hint, and an exit code."""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn, cast

import click

from assay.contracts.errors import AssayError, ExitCode

COMMAND_LOG: Final = "assay.command"
"""The logger of `assay.telemetry.logs` for the start and end of a command."""
_REFUSALS: Final = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)
"""Errors of reading or writing that are the machine's and no defect of Assay."""
_SQLITE_REFUSALS: Final = frozenset({3, 8, 10, 13, 14})
"""The same for SQLite: permission, read-only, input or output, full, cannot be opened."""


def log_to_stderr(*, verbose: bool) -> None:
    """Show the log of a server on stderr, warnings and worse unless `verbose`."""
    screen = logging.StreamHandler(sys.stderr)
    # On the handler: the log on disk has more than the screen.
    screen.setLevel(logging.INFO if verbose else logging.WARNING)
    # `run_command` prints how the command ends, so the log does not repeat it.
    screen.addFilter(lambda record: record.name != COMMAND_LOG)
    logging.basicConfig(
        handlers=[screen],
        level=screen.level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def leave(code: int) -> NoReturn:
    """Exit this process with an exit code.

    Threads of the E2B SDK sometimes abort during interpreter shutdown and change the exit code.
    If the SDK is loaded, the process therefore exits without that shutdown.
    """
    if "e2b" in sys.modules:
        logging.shutdown()
        with suppress(OSError, ValueError):  # A closed pipe was reported before.
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run_command(
    command: click.Command,
    arguments: list[str],
    *,
    name: str,
    obj: object = None,
    on_error: Callable[[Exception], None] = lambda _: None,
) -> int:
    """Run one command line and return its exit code; `obj` is click's context object."""
    # gRPC would also log to stderr the errors that Assay reports.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # noqa: TID251 - a word to gRPC, not a setting
    try:
        code = _answered(partial(command.main, arguments, prog_name=name, obj=obj), name, on_error)
        sys.stdout.flush()  # A closed pipe fails here, not during interpreter shutdown.
    except Exception as error:  # noqa: BLE001 - a crash has its own exit code
        if _is_closed_pipe(error):
            # At shutdown the interpreter would try to write the rest of its buffer.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.CLOSED_PIPE
        on_error(error)
        if trouble := machine_trouble(error):
            return _print_error(trouble, _remedy(trouble), ExitCode.INFRASTRUCTURE)
        traceback.print_exc()
        told = f"Assay has a defect: {type(error).__name__}"
        return _print_error(told, "report it with the lines above", ExitCode.INTERNAL)
    return code


def _answered(
    carry_out: Callable[..., object], name: str, on_error: Callable[[Exception], None]
) -> int:
    """Run the command and print its errors of usage and of Assay."""
    stdout = sys.stdout
    try:
        outcome = carry_out(standalone_mode=False)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (click.UsageError, click.FileError) as error:
        return _explain_usage(error, name)
    except AssayError as error:
        on_error(error)
        hint = error.hint
        if error.exit_code is ExitCode.USAGE:
            hint = hint or f"see `{name} --help`"
        return _print_error(str(error), hint, error.exit_code)
    except SystemExit as leaving:
        # For a closed pipe click replaces the streams and exits with 1, and rich exits with 1 as
        # well: that would be a verdict.
        if sys.stdout is not stdout or isinstance(leaving.__context__, BrokenPipeError):
            raise BrokenPipeError from leaving
        raise
    except (click.Abort, KeyboardInterrupt):
        return _print_error("interrupted", "", ExitCode.INTERRUPTED)
    return outcome if isinstance(outcome, int) else ExitCode.ACCEPTED


def _is_closed_pipe(error: BaseException) -> bool:
    """Return whether stdout's reader has closed the pipe; in a group, all errors must be that."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(map(_is_closed_pipe, group.exceptions))
    return isinstance(error, BrokenPipeError)


def machine_trouble(error: BaseException) -> str:
    """Describe a failure of the machine, such as a full disk; empty for any other error.

    In a group of errors, all must be of this kind.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        each = [machine_trouble(one) for one in group.exceptions]
        return each[0] if all(each) else ""
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        place = f"{os.fsdecode(error.filename)!r}: " if error.filename else ""
        return f"a file cannot be read or written: {place}{error.strerror}"
    # Not imported for this: without an earlier import, it cannot have raised the error.
    database = sys.modules.get("sqlite3")
    if database is not None and isinstance(error, database.OperationalError):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return f"a database cannot be read or written: {error}" if code in _SQLITE_REFUSALS else ""
    return ""


def _remedy(trouble: str) -> str:
    from assay.settings.load import load_settings

    told = "free disk space, or make it writable for you"
    try:
        settings = load_settings()
    except AssayError:
        return told
    state, cache = settings.state_dir, settings.models.cache_dir.parent
    ours = (*(state, *state.parents)[:-1], *(cache, *cache.parents)[:-1])
    if "'" in trouble and not any(f"'{folder}" in trouble for folder in ours):
        return "check that you may read and write it, and that the disk is not full"
    return f"{told}; ASSAY_STATE_DIR and XDG_CACHE_HOME replace {state} and {cache}"


def _explain_usage(error: click.UsageError | click.FileError, name: str) -> int:
    message = error.format_message().rstrip(".")
    if isinstance(error, click.FileError):
        return _print_error(message, "check the path", ExitCode.USAGE)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)
        return ExitCode.USAGE
    where = error.ctx.command_path if error.ctx else name
    return _print_error(message, f"see `{where} --help`", ExitCode.USAGE)


def _print_error(message: str, hint: str, code: int) -> int:
    from assay.settings.load import color_disabled

    colour = False if color_disabled() else None
    # Lower case, unless it begins with a name in capitals.
    message = message if message[:2].isupper() else message[:1].lower() + message[1:]
    click.echo(click.style("error: ", fg="red") + message, err=True, color=colour)
    if hint:
        click.echo(click.style("hint: ", fg="cyan") + hint, err=True, color=colour)
    return code
