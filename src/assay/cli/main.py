"""The `assay` command: imports and runs one subcommand."""

import importlib
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from assay.cli.errors import leave, machine_trouble, run_command
from assay.contracts.distribution import DISTRIBUTION
from assay.contracts.errors import UsageError
from assay.sandbox.native.kernel.open_files import raise_limit

if TYPE_CHECKING:
    from assay.telemetry.logs import CommandLog

_COMMANDS: Final = {
    "run": ("run", "run", "Write code for a goal until an independent check accepts it."),
    "resume": ("run", "resume", "Continue a run where it stopped."),
    "replay": ("run", "replay", "Repeat a run without a model and compare the results."),
    "runs": ("runs", "runs", "List or delete runs."),
    "show": ("runs", "show", "Show the steps and the result of a run."),
    "diff": ("changes", "diff", "Print the changes of a run as a patch."),
    "apply": ("changes", "apply", "Write the accepted files of a run into its folder."),
    "undo": ("changes", "undo", "Take back what a run wrote."),
    "verify": ("verify", "verify", "Check a certificate and run its checks again."),
    "chat": ("chat.command", "chat", "Chat with an agent that can run code."),
    "sessions": ("chat.command", "sessions", "List, rename, delete and export sessions."),
    "serve": ("serve", "command", "Serve the HTTP API and the web page."),
    "keys": ("serve", "keys_command", "Manage API keys for `assay serve`."),
    "bench": ("bench", "command", "Run and compare benchmarks of models and of Assay."),
    "memory": ("memory", "command", "Manage lessons from earlier failures."),
    "doctor": (
        "doctor",
        "command",
        "Check what works here, isolation first, and list what is missing.",
    ),
    "models": (
        "models",
        "command",
        "List usable models, download one, test one.",
    ),
    "map": (
        "diagram.command",
        "command",
        "Draw the parts of the package and the agent's graph.",
    ),
    "tools": ("tools", "command", "List the tools that models may use, and check your own."),
    "mcp": ("mcp", "command", "Serve sandboxes to MCP clients."),
    "env": ("env", "command", "Show and build the environment that a project declares."),
    "executor": ("executor", "command", "Serve sandboxes to other machines over gRPC."),
    "certs": (
        "executor",
        "certs_command",
        "Create TLS certificates for an executor and its clients.",
    ),
    "sandbox": ("sandbox", "command", "Run programs in a sandbox, test and clean up sandboxes."),
}


_WITH_MODEL: Final = frozenset({"run", "chat", "serve"})


class LazyGroup(click.Group):
    """A command group that imports the module of a command only when it is needed."""

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
    """The state of one command line while it runs."""

    words: list[str]
    log: "CommandLog | None" = None
    help_only: bool = False
    """The command only showed help, so the log does not record its end."""

    def note(self, error: Exception) -> None:
        """Log the error that ended the command."""
        if self.log is not None:
            self.log.failed(error, trouble=machine_trouble(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortForm:
    """The root options that replace a command."""

    goal: str | None = None
    benchmarks: bool = False
    benchmarks_limit: int | None = None
    model: str | None = None


def command_for(short: ShortForm, named: str | None = None) -> tuple[str, ...]:
    """Return the command that a short form stands for; `named` is a command given with it.

    Raises:
        UsageError: If the options contradict each other.
    """
    if named:
        _refuse_beside(short, named)
    if short.goal is not None and short.benchmarks:
        raise UsageError("--goal and --benchmarks exclude each other", hint="use one of them")
    if short.benchmarks_limit is not None and not short.benchmarks:
        raise UsageError("--benchmarks-limit needs --benchmarks", hint="add --benchmarks")
    model = () if short.model is None else ("--model", short.model)
    if short.goal is not None:
        if not short.goal.strip():
            raise UsageError("the goal is empty", hint='assay run "write …"')
        # Behind the options, so that a goal that begins with a dash is one.
        return ("run", *model, "--", short.goal)
    if short.benchmarks:
        limit = short.benchmarks_limit
        most = () if limit is None else ("--limit", str(limit))
        return ("bench", "run", "polyglot", *most, *model)
    raise UsageError(
        "--model alone names no command",
        hint=f"`assay chat --model {short.model}` starts a session; --goal starts a run",
    )


def _refuse_beside(short: ShortForm, named: str) -> None:
    if short == ShortForm(model=short.model):
        hint = f"`assay {named} --help` lists its options"
        if named in _WITH_MODEL:
            hint = f"write: assay {named} --model {short.model}"
        raise UsageError(f"--model cannot stand before `{named}`", hint=hint)
    raise UsageError(
        f"--goal and --benchmarks cannot be combined with the command {named!r}",
        hint=f"leave one out; `assay {named} --help` lists its options",
    )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    no_args_is_help=True,
)
@click.version_option(package_name=DISTRIBUTION, prog_name="assay")
@click.option("--verbose", is_flag=True, help="Show the log on stderr too.")
@click.option("--goal", metavar="GOAL", help="Same as `assay run GOAL`.")
@click.option("--benchmarks", is_flag=True, help="Same as `assay bench run polyglot`.")
@click.option("--benchmarks-limit", type=click.IntRange(min=1), help="With --benchmarks: limit.")
@click.option("--model", help="With --goal or --benchmarks: model to use.")
@click.pass_context
def cli(ctx: click.Context, *, verbose: bool, **short: "str | int | bool | None") -> object:
    """A coding agent that does not take the model's word for it."""
    from assay.telemetry.logs import CommandLog

    command = ctx.ensure_object(CommandContext)
    command.log = CommandLog(command.words, verbose=verbose)
    named = ctx.invoked_subcommand
    if any(value not in {None, False} for value in short.values()):
        return _carry_out_short(ctx, short, named)
    if not named:
        raise click.UsageError("Missing command.", ctx)
    return None


def _carry_out_short(
    ctx: click.Context, short: "dict[str, str | int | bool | None]", named: str | None
) -> object:
    """Print and run the command that a short form stands for."""
    words = command_for(ShortForm(**short), named)  # pyright: ignore[reportArgumentType] - click has checked them
    click.echo(f"note: this is short for `{shlex.join(('assay', *words))}`", err=True)
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
    command = CommandContext(words=arguments)
    try:
        code = run_command(cli, arguments, name="assay", obj=command, on_error=command.note)
        if command.log is not None and not command.help_only:
            command.log.ended(code)
        return code
    finally:
        if command.log is not None:
            command.log.close()
