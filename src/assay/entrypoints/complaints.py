"""Runs a command line: every error becomes one line with a hint, and an exit code."""

import os
import sys
from collections.abc import Callable

import click

from assay.contracts.errors import AssayError, ExitCode


def run_command(
    command: click.Command,
    arguments: list[str],
    *,
    name: str,
    obj: object = None,
    on_error: Callable[[AssayError], None] = lambda _: None,
) -> int:
    """Run one command line and return its exit code; `obj` is what click calls so."""
    try:
        outcome = command.main(arguments, prog_name=name, standalone_mode=False, obj=obj)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (click.UsageError, click.FileError) as error:
        return _explain_usage(error, name)
    except AssayError as error:
        on_error(error)
        hint = error.hint
        if error.exit_code is ExitCode.USAGE:
            hint = hint or f"see `{name} --help`"
        return _complain(str(error), hint, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", "", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever was reading has seen enough; the interpreter would still try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.NOT_ACCEPTED
    return outcome if isinstance(outcome, int) else ExitCode.ACCEPTED


def _explain_usage(error: click.UsageError | click.FileError, name: str) -> int:
    message = error.format_message().rstrip(".")
    if isinstance(error, click.FileError):
        return _complain(message, "check the path", ExitCode.USAGE)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)
        return ExitCode.USAGE
    where = error.ctx.command_path if error.ctx else name
    return _complain(message, f"see `{where} --help`", ExitCode.USAGE)


def _complain(message: str, hint: str, code: int) -> int:
    from assay.settings import colour_refused  # noqa: PLC0415 - loads more than --help needs

    colour = False if colour_refused() else None
    # Lower case, unless it begins with a name in capitals.
    message = message if message[:2].isupper() else message[:1].lower() + message[1:]
    click.echo(click.style("error: ", fg="red") + message, err=True, color=colour)
    if hint:
        click.echo(click.style("hint: ", fg="cyan") + hint, err=True, color=colour)
    return code
