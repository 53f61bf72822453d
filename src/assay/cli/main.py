"""The `assay` command: finds the command asked for."""

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from assay.cli.errors import leave, machine_trouble, run_command
from assay.contracts.distribution import DISTRIBUTION
from assay.sandbox.native.kernel.open_files import raise_limit

if TYPE_CHECKING:
    from assay.telemetry.logs import CommandLog

_COMMANDS: Final = {
    "run": ("run", "run", "Carry out a goal; comes back with code that a check has accepted."),
    "resume": ("run", "resume", "Go on with a run where it stopped."),
    "replay": ("run", "replay", "Do a run again without a model, and compare."),
    "runs": ("runs", "runs", "List what was run."),
    "show": ("runs", "show", "Show what happened in a run."),
    "verify": ("verify", "verify", "Run the proof of a certificate again."),
    "chat": ("chat.command", "chat", "Talk with an agent that can run code."),
    "sessions": ("chat.command", "sessions", "Look after conversations."),
    "serve": ("serve", "command", "Serve the HTTP API and the web page."),
    "keys": ("keys", "command", "Look after who may use `assay serve`."),
    "bench": ("bench", "command", "Measure models, and Assay, on suites of exercises."),
    "memory": ("memory", "command", "Look after what earlier failures taught."),
    "doctor": (
        "doctor.command",
        "command",
        "Prove what works here, isolation first, and name what is missing.",
    ),
    "models": (
        "models",
        "command",
        "Show which models are usable here, fetch one, try one out.",
    ),
    "map": (
        "diagram.command",
        "command",
        "Draw the parts of the system and the graph of the agent.",
    ),
    "tools": ("tools", "command", "Show which tools models may use, and check your own."),
    "mcp": ("mcp", "command", "Serve sandboxes to MCP clients."),
    "executor": ("executor", "command", "Run programs for others, over gRPC."),
    "certs": ("certs", "command", "Make certificates for an executor and its clients."),
    "sandbox": ("sandbox", "command", "Run programs that cannot leave their sandbox."),
}


class LazyGroup(click.Group):
    """Imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        return getattr(importlib.import_module(f"assay.cli.{module}"), name)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            ctx.ensure_object(CommandContext).help_only = True
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, _, about) in _COMMANDS.items()])


@dataclass(slots=True, kw_only=True)
class CommandContext:
    """One command line being carried out."""

    words: list[str]
    log: "CommandLog | None" = None
    help_only: bool = False
    """Nothing was done but to show help, which is no news for the log."""

    def note(self, error: Exception) -> None:
        """Write into the log what has ended it."""
        if self.log is not None:
            self.log.failed(error, trouble=machine_trouble(error))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    no_args_is_help=True,
)
@click.version_option(package_name=DISTRIBUTION, prog_name="assay")
@click.option("--verbose", is_flag=True, help="Show the log on the screen too.")
@click.option("--goal", metavar="GOAL", help="Same as `assay run GOAL`.")
@click.option("--benchmarks", is_flag=True, help="Same as `assay bench run polyglot`.")
@click.option("--benchmarks-limit", type=click.IntRange(min=1), help="With --benchmarks: so many.")
@click.option("--model", help="With --goal or --benchmarks: who answers.")
@click.pass_context
def cli(ctx: click.Context, *, verbose: bool, **short: "str | int | bool | None") -> object:
    """A coding agent that does not take the model's word for it."""
    from assay.telemetry.logs import CommandLog

    sitting = ctx.ensure_object(CommandContext)
    sitting.log = CommandLog(sitting.words, verbose=verbose)
    named = ctx.invoked_subcommand
    if any(value not in {None, False} for value in short.values()):
        return _carry_out_short(ctx, short, named)
    if not named:
        raise click.UsageError("Missing command.", ctx)
    return None


def _carry_out_short(
    ctx: click.Context, short: "dict[str, str | int | bool | None]", named: str | None
) -> object:
    """Do what a short form stands for, and say what that is."""
    from assay.cli.aliases import ShortForm, command_for, written

    words = command_for(ShortForm(**short), named)  # pyright: ignore[reportArgumentType] - click has checked them
    click.echo(f"note: this is short for `{written(words)}`", err=True)
    command = cli.get_command(ctx, words[0])
    if command is None:
        raise click.UsageError(f"This installation has no `assay {words[0]}`.", ctx)
    with command.make_context(words[0], list(words[1:]), parent=ctx) as inner:
        return command.invoke(inner)


def main() -> None:
    """Run the command of this process and leave with its exit code."""
    raise_limit()
    leave(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; every error becomes a line on stderr."""
    sitting = CommandContext(words=arguments)
    try:
        code = run_command(cli, arguments, name="assay", obj=sitting, on_error=sitting.note)
        if sitting.log is not None and not sitting.help_only:
            sitting.log.ended(code)
        return code
    finally:
        if sitting.log is not None:
            sitting.log.close()
