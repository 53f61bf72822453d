"""`assay models`: lists usable models, downloads the embedded one, sends one real request."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from assay.cli.options import JSON_ARRAY, JSON_OBJECT, to_json
from assay.cli.terminal import open_progress
from assay.contracts.errors import ExitCode, UsageError
from assay.contracts.messages import Message, Price, Reply, Request

if TYPE_CHECKING:
    from rich.console import Console

    from assay.models.catalogue import DescribedModel
    from assay.models.local.weights import Weights
    from assay.models.open import OpenOptions
    from assay.models.resolve import Availability
    from assay.settings.load import ModelSettings

_QUESTION: Final = Request(
    messages=(Message(role="user", text="Reply with the single word: ready"),),
    # Room for models that reason before they answer.
    max_output_tokens=1024,
    temperature=0.0,
)


@click.group(name="models", invoke_without_command=True)
@JSON_ARRAY
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

    from assay.cli.render.view import open_console
    from assay.models.resolve import list_available

    found = anyio.run(list_available, _settings())
    if as_json:
        click.echo(to_json(found))
    else:
        show(found, open_console())
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
@JSON_OBJECT
def pull(name: str, *, as_json: bool) -> None:
    """Download the weights of an embedded model, of the default one without NAME.

    Assay checks them by SHA-256 and keeps them. The next pull continues an interrupted one.
    """
    import anyio

    settings = _settings()
    with open_progress(silent=as_json) as opening:
        weights, path, fetched = anyio.run(_pull, name.removeprefix("local:"), settings, opening)
    if not as_json:
        click.echo(f"{weights.name} is at {path}")
        return
    fields = {
        "name": f"local:{weights.name}",
        "title": weights.title,
        "licence": weights.licence,
        "path": path,
        "size_bytes": weights.size_bytes,
        "sha256": weights.sha256,
        "fetched": fetched,
    }
    click.echo(to_json(fields))


async def _pull(
    name: str, settings: "ModelSettings", opening: "OpenOptions"
) -> tuple["Weights", Path, bool]:
    """Return the weights, their path, and whether they were fetched."""
    from assay.models.local.weights import weights_named
    from assay.models.open import pull as pull_weights
    from assay.models.resolve import weights_store

    weights, store = weights_named(name), weights_store(settings)
    here = await store.find(weights)
    path = here or await pull_weights(weights, store, opening)
    return weights, path, here is None


@command.command()
@click.argument("name", default="")
@JSON_OBJECT
def info(name: str, *, as_json: bool) -> None:
    """Show the properties of the model NAME, or of the one of the settings.

    NAME is PROVIDER[:MODEL]. Each property comes with its source. Assay asks servers on this
    machine and your own endpoint for them, and sends nothing to a provider. Set them under
    [models."PROVIDER:MODEL"].
    """
    import anyio

    settings = _settings()
    model, described = anyio.run(_describe, name or settings.default, settings)
    found = described.info
    values = {
        "context_tokens": found.context_tokens,
        "max_output_tokens": found.max_output_tokens,
        "reasoning_effort": found.reasoning_effort,
        "tool_calls": found.tool_calls,
        "vision": found.sees_pictures,
        "small": found.small,
        "price": found.price,
    }
    if as_json:
        properties = {
            name: {"value": value, "source": described.sources[name]}
            for name, value in values.items()
        }
        click.echo(to_json({"name": model, "properties": properties}))
        return
    from rich.table import Table

    from assay.cli.render.view import open_console

    table = Table.grid(padding=(0, 2))
    for property_name, value in values.items():
        table.add_row(property_name, _shown(value), described.sources[property_name])
    console = open_console()
    console.print(model, markup=False, soft_wrap=True)
    console.print(table)


def _shown(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case Price():
            return f"${value.input_usd:g} in, ${value.output_usd:g} out per million tokens"
        case _:
            return str(value)


async def _describe(name: str, settings: "ModelSettings") -> tuple[str, "DescribedModel"]:
    from assay.models.open import describe_at
    from assay.models.resolve import choose, parse_name

    chosen = parse_name(name, settings)
    if chosen.kind == "auto":
        chosen = parse_name((await choose(settings)).name, settings)
    if chosen.provider is None:
        raise UsageError(
            f"{name!r} is no model of a provider or server", hint="write PROVIDER or PROVIDER:MODEL"
        )
    model, described = await describe_at(chosen.provider, chosen.rest, settings)
    return f"{chosen.provider.name}:{model}", described


@command.command()
@click.argument("name", default="")
@JSON_OBJECT
def test(name: str, *, as_json: bool) -> None:
    """Send one real request to the model NAME, or to the one of the settings.

    Prints the answer, its duration, its tokens and its cost.
    """
    import anyio

    settings = _settings()
    with open_progress(silent=as_json) as opening:
        model, reply, open_s, reply_s = anyio.run(
            _test, name or settings.default, settings, opening
        )
    usage = reply.usage
    if as_json:
        fields = {
            "name": model,
            "model": reply.model,
            "text": reply.message.text,
            "stop_reason": reply.stop_reason,
            "open_s": round(open_s, 3),
            "reply_s": round(reply_s, 3),
            "input_tokens": usage.input_tokens,
            "cached_input_tokens": usage.cached_input_tokens,
            "output_tokens": usage.output_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cost_usd": usage.cost_usd,
        }
        click.echo(to_json(fields))
        return
    from assay.cli.render.view import open_console

    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.6f}"
    console = open_console()
    for line in (
        f"{model} answered:",
        reply.message.text.strip() or "(nothing)",
        (
            f"{reply_s:.2f} s, {usage.input_tokens} tokens read, "
            f"{usage.output_tokens} written, cost {cost}"
        ),
    ):
        console.print(line, markup=False, soft_wrap=True)


async def _test(
    name: str, settings: "ModelSettings", opening: "OpenOptions"
) -> tuple[str, Reply, float, float]:
    """Return the name of the model, its reply, and the seconds to open it and to answer."""
    import anyio

    from assay.models.open import open_model

    begun = anyio.current_time()
    async with open_model(name, settings, opening) as model:
        opened = anyio.current_time()
        reply = await model.reply(_QUESTION)
        return model.name, reply, opened - begun, anyio.current_time() - opened


def _settings() -> "ModelSettings":
    from assay.settings.load import load_settings, project_notice

    settings = load_settings(project=Path.cwd()).models
    if notice := project_notice(Path.cwd()):
        click.echo(notice, err=True)
    return settings
