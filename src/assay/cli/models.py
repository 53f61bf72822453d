"""`assay models`: lists usable models, downloads the embedded one, sends one real request."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli.terminal import open_progress
from assay.contracts.errors import ExitCode
from assay.contracts.messages import Message, Reply, Request

if TYPE_CHECKING:
    from rich.console import Console

    from assay.models.local.weights import Weights
    from assay.models.open import OpenOptions
    from assay.models.resolve import Availability
    from assay.settings.load import ModelSettings

_UNBROKEN: Final = 2000
_QUESTION: Final = Request(
    messages=(Message(role="user", text="Reply with the single word: ready"),),
    # Room for models that reason before they answer.
    max_output_tokens=1024,
    temperature=0.0,
)


@click.group(name="models", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> int:
    """List usable models, and why the others are not usable.

    Options for a model accept `auto`, `local[:NAME]`, PROVIDER[:MODEL], `scripted:FILE` or
    `replay:PATH`. This command sends nothing to a provider; the exit code is 4 if `auto` finds no
    model.
    """
    if ctx.invoked_subcommand is not None:
        return ExitCode.ACCEPTED
    import anyio

    from assay.models.resolve import list_available

    found = anyio.run(list_available, _settings())
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found]))
    else:
        show(found, _console())
    any_for_auto = any(one.by_auto for one in found)
    return ExitCode.ACCEPTED if any_for_auto else ExitCode.INFRASTRUCTURE


def show(found: Sequence["Availability"], console: "Console") -> None:
    """Print the usable models, the others and how to enable them, then what `auto` takes."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for one in sorted(found, key=lambda one: not one.usable):
        mark = Text("usable", style="green") if one.usable else Text("no", style="yellow")
        table.add_row(Text(one.name, overflow="fold"), mark, Text(one.reason, overflow="fold"))
    console.print(table)
    fixes: dict[str, list[str]] = {}
    for one in found:
        if one.fix:
            fixes.setdefault(one.fix, []).append(one.title)
    if fixes:
        console.print("\nTo enable more models:")
    for fix, titles in fixes.items():
        # Not wrapped, so that a command can be copied.
        console.print(Text(f"  {'; '.join(titles)}: {fix}"), soft_wrap=True)
    taken = next((one for one in found if one.by_auto), None)
    verdict = f"`auto` takes {taken.name}." if taken else "`auto` finds no model."
    console.print(Text(f"\n{verdict}", style="bold"), soft_wrap=True)


@command.command()
@click.argument("name", default="")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pull(name: str, *, as_json: bool) -> None:
    """Download the weights of an embedded model, of the default one without NAME.

    Assay checks them by SHA-256 and keeps them. The next pull continues an interrupted one.
    """
    import anyio

    settings = _settings()
    with open_progress(silent=as_json) as opening:
        pulled = anyio.run(_pull, name.removeprefix("local:"), settings, opening)
    if as_json:
        click.echo(json.dumps(pulled.fields()))
    else:
        click.echo(f"{pulled.weights.name} is at {pulled.path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pulled:
    weights: "Weights"
    path: Path
    fetched: bool

    def fields(self) -> dict[str, Any]:
        return {
            "name": f"local:{self.weights.name}",
            "title": self.weights.title,
            "licence": self.weights.licence,
            "path": str(self.path),
            "size_bytes": self.weights.size_bytes,
            "sha256": self.weights.sha256,
            "fetched": self.fetched,
        }


async def _pull(name: str, settings: "ModelSettings", opening: "OpenOptions") -> _Pulled:
    from assay.models.local.weights import weights_named
    from assay.models.open import pull as pull_weights
    from assay.models.resolve import weights_store

    weights, store = weights_named(name), weights_store(settings)
    here = await store.find(weights)
    path = here or await pull_weights(weights, store, opening)
    return _Pulled(weights=weights, path=path, fetched=here is None)


@command.command()
@click.argument("name", default="")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def test(name: str, *, as_json: bool) -> None:
    """Send one real request to the model NAME, or to the one of the settings.

    Prints the answer, its duration, its tokens and its cost.
    """
    import anyio

    settings = _settings()
    with open_progress(silent=as_json) as opening:
        tested = anyio.run(_test, name or settings.default, settings, opening)
    if as_json:
        click.echo(json.dumps(tested.fields()))
    else:
        _print_test(tested)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tested:
    name: str
    reply: Reply
    open_s: float
    reply_s: float

    def fields(self) -> dict[str, Any]:
        usage = self.reply.usage
        return {
            "name": self.name,
            "model": self.reply.model,
            "text": self.reply.message.text,
            "stop_reason": self.reply.stop_reason.value,
            "open_s": round(self.open_s, 3),
            "reply_s": round(self.reply_s, 3),
            "input_tokens": usage.input_tokens,
            "cached_input_tokens": usage.cached_input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.cost_usd,
        }


async def _test(name: str, settings: "ModelSettings", opening: "OpenOptions") -> _Tested:
    import anyio

    from assay.models.open import open_model

    begun = anyio.current_time()
    async with open_model(name, settings, opening) as model:
        opened = anyio.current_time()
        reply = await model.reply(_QUESTION)
        return _Tested(
            name=model.name,
            reply=reply,
            open_s=opened - begun,
            reply_s=anyio.current_time() - opened,
        )


def _print_test(tested: _Tested) -> None:
    usage = tested.reply.usage
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.6f}"
    console = _console()
    console.print(f"{tested.name} answered:", markup=False, soft_wrap=True)
    console.print(tested.reply.message.text.strip() or "(nothing)", markup=False, soft_wrap=True)
    console.print(
        f"{tested.reply_s:.2f} s, {usage.input_tokens} tokens read, "
        f"{usage.output_tokens} written, cost {cost}",
        markup=False,
        soft_wrap=True,
    )


def _settings() -> "ModelSettings":
    from assay.settings.load import load_settings, project_notice

    settings = load_settings(project=Path.cwd()).models
    if notice := project_notice(Path.cwd()):
        click.echo(notice, err=True)
    return settings


def _console() -> "Console":
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        # Without a terminal, each model is one line.
        console.width = _UNBROKEN
    return console
