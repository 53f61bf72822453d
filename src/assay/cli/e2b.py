"""`assay sandbox list` and `clean` at E2B: running and orphaned sandboxes."""

import json
from typing import TYPE_CHECKING

import click

from assay.cli.confirm import check_ids, confirm
from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from assay.sandbox.e2b.cleanup import Leftover
    from assay.sandbox.e2b.vm import E2BOptions


def list_sandboxes(*, as_json: bool) -> None:
    """Show the sandboxes that Assay has opened with this key."""
    import anyio

    from assay.sandbox.e2b.cleanup import find

    found = anyio.run(find, _options())
    if as_json:
        click.echo(json.dumps([_row(one) for one in found]))
        return
    if not found:
        click.echo("no sandbox of Assay is running at E2B")
    for one in found:
        click.echo(
            f"{one.id}  {_state(one)}  owner {one.owner.pid} on {one.host}  {one.age_s:.0f} s"
        )
    if any(one.orphaned for one in found):
        click.echo("hint: `assay sandbox clean --backend e2b` ends orphaned sandboxes", err=True)


def clean(ids: tuple[str, ...], *, everything: bool, dry_run: bool, yes: bool) -> None:
    """End the sandboxes whose owner is gone; with `everything`, all that Assay has opened."""
    import anyio

    from assay.sandbox.e2b.cleanup import find

    options = _options()
    found = anyio.run(find, options)
    wanted = [one for one in found if everything or one.orphaned]
    if ids:
        check_ids(ids, [one.id for one in wanted])
        wanted = [one for one in wanted if one.id in ids]
    elif others := sum(not one.here for one in found if one not in wanted):
        click.echo(f"{others} others have an owner elsewhere; `--all` ends them too", err=True)
    if not wanted:
        click.echo("no orphaned sandboxes")
    elif dry_run:
        for one in wanted:
            click.echo(f"would end {one.id}")
    else:
        confirm(f"End {', '.join(one.id for one in wanted)}?", yes=yes)
        anyio.run(_end, options, wanted)


async def _end(options: "E2BOptions", wanted: list["Leftover"]) -> None:
    from assay.sandbox.e2b.cleanup import end

    for one in wanted:
        await end(options, one)
        click.echo(f"ended {one.id}")


def _state(one: "Leftover") -> str:
    return "orphaned" if one.orphaned else "running" if one.here else "elsewhere"


def _row(one: "Leftover") -> dict[str, str | int | float]:
    return {
        "sandbox": one.id,
        "state": _state(one),
        "owner_host": one.host,
        "owner_pid": one.owner.pid,
        "age_s": round(one.age_s, 1),
    }


def _options() -> "E2BOptions":
    from assay.sandbox.e2b.backend import check_sdk
    from assay.sandbox.factory import e2b_options
    from assay.settings.load import load_settings

    check_sdk()
    options = e2b_options(load_settings().sandbox.e2b)
    if not options.api_key:
        raise UsageError("the e2b backend needs a key", hint="set E2B_API_KEY")
    return options
