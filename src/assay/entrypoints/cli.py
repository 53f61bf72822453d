"""The `assay` command: finds the command asked for, and turns errors into lines and exit codes."""

import importlib
import os
import sys
from typing import Final

import click

from assay.contracts.errors import AssayError, ExitCode

_COMMANDS: Final = {
    "run": ("cli_run", "run", "Carry out a goal; comes back with code that a check has accepted."),
    "resume": ("cli_run", "resume", "Go on with a run where it stopped."),
    "replay": ("cli_run", "replay", "Do a run again without a model, and compare."),
    "runs": ("cli_runs", "runs", "List what was run."),
    "show": ("cli_runs", "show", "Show what happened in a run."),
    "verify": ("cli_verify", "verify", "Run the proof of a certificate again."),
    "chat": ("cli_chat", "chat", "Talk with an agent that can run code."),
    "sessions": ("cli_chat", "sessions", "Look after conversations."),
    "memory": ("cli_memory", "command", "Look after what earlier failures taught."),
    "doctor": (
        "cli_doctor",
        "command",
        "Prove what this machine can isolate, and name what is missing.",
    ),
    "models": (
        "cli_models",
        "command",
        "Show which models are usable here, fetch one, try one out.",
    ),
    "tools": ("cli_tools", "command", "Show which tools models may use, and check your own."),
    "mcp": ("cli_mcp", "command", "Serve sandboxes to MCP clients."),
    "sandbox": ("cli_sandbox", "command", "Run programs that cannot leave their sandbox."),
}


class _LateCommands(click.Group):
    """Imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        return getattr(importlib.import_module(f"assay.entrypoints.{module}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in _COMMANDS.items()])


@click.group(cls=_LateCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="assay", prog_name="assay")
def cli() -> None:
    """A coding agent that hands over only code it has proven."""


def main() -> None:
    """Run the command of this process and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; every error becomes a line on stderr."""
    try:
        outcome = cli.main(arguments, prog_name="assay", standalone_mode=False)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.UsageError as error:
        return _explain_usage(error)
    except AssayError as error:
        hint = error.hint
        if error.exit_code is ExitCode.USAGE:
            hint = hint or "see `assay --help`"
        return _complain(str(error), hint, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", "", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever was reading has seen enough; the interpreter would still try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.NOT_ACCEPTED
    return outcome if isinstance(outcome, int) else ExitCode.ACCEPTED


def _explain_usage(error: click.UsageError) -> int:
    message = error.format_message().rstrip(".")
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)
        return ExitCode.USAGE
    where = error.ctx.command_path if error.ctx else "assay"
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
