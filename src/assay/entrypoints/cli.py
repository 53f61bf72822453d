"""The `assay` command: finds the command asked for."""

import importlib
import sys
from typing import Final

import click

from assay.entrypoints.complaints import run_command

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
    "executor": ("executor", "command", "Run programs for others, over gRPC."),
    "certs": ("cli_certs", "command", "Make certificates for an executor and its clients."),
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
    return run_command(cli, arguments, name="assay")
