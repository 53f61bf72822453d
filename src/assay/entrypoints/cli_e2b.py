"""`assay sandbox list` and `clean` at E2B: what runs there, and what was forgotten."""

import json
from typing import TYPE_CHECKING

import click

from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from assay.sandbox.e2b.leftovers import Leftover
    from assay.sandbox.e2b.machine import E2BOptions


def list_sandboxes(*, as_json: bool) -> None:
    """Show the sandboxes that Assay has opened with this key."""
    import anyio  # noqa: PLC0415 - commands load what they need

    from assay.sandbox.e2b.leftovers import find  # noqa: PLC0415

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
        click.echo("hint: `assay sandbox clean --backend e2b` ends what was forgotten", err=True)


def clean(*, everything: bool) -> None:
    """End the sandboxes whose owner is gone; with `everything`, all that Assay has opened."""
    import anyio  # noqa: PLC0415

    ended, others = anyio.run(_clean, _options(), everything)
    for one in ended:
        click.echo(f"ended {one.id}")
    if not ended:
        click.echo("nothing was forgotten")
    if others:
        click.echo(f"{others} others have an owner elsewhere; `--all` ends them too", err=True)


async def _clean(options: "E2BOptions", everything: bool) -> tuple[list["Leftover"], int]:  # noqa: FBT001 - anyio.run passes positionally
    from assay.sandbox.e2b.leftovers import end, find  # noqa: PLC0415

    found = await find(options)
    wanted = [one for one in found if everything or one.orphaned]
    for one in wanted:
        await end(options, one)
    return wanted, sum(not one.here for one in found if one not in wanted)


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
    from assay.sandbox.e2b.backend import check_sdk  # noqa: PLC0415
    from assay.sandbox.factory import e2b_options  # noqa: PLC0415
    from assay.settings import load_settings  # noqa: PLC0415

    check_sdk()
    options = e2b_options(load_settings().sandbox.e2b)
    if not options.api_key:
        raise UsageError("the e2b backend needs a key", hint="set E2B_API_KEY")
    return options
