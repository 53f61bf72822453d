"""`assay serve`: the HTTP API and the web page; `assay keys`: API keys, with roles and quotas."""

import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from assay.cli.options import BACKEND, JSON_ARRAY, JSON_OBJECT, MODEL, YES, json_option, to_json
from assay.cli.terminal import confirm
from assay.contracts.errors import ExitCode

if TYPE_CHECKING:
    from assay.server.auth import ApiKeys
    from assay.server.db.models import KeyRecord


@click.command(name="serve")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 8000; 0: any free]")
@MODEL
@BACKEND
@click.option("--require-keys", is_flag=True, default=None, help="Require an API key.")
@json_option("Print the address as one JSON object.")
@click.option("--log-json", is_flag=True, help="Also write the log to stderr, as JSON lines.")
def command(*, as_json: bool, log_json: bool, **given: Any) -> int:
    """Serve the HTTP API and the web page until a signal stops the server.

    SIGTERM and Ctrl-C let running turns finish within `serve.shutdown_grace_s`; a second signal
    does not. The next start resumes unfinished runs. Without API keys, only this machine is served.
    """
    import anyio

    from assay.settings.load import load_settings
    from assay.telemetry.logs import JsonFormatter, written_beside
    from assay.wiring import check_extras

    if log_json:
        screen = logging.StreamHandler(sys.stderr)
        screen.setFormatter(JsonFormatter())
        logging.getLogger("assay").addHandler(screen)
    words = ("host", "port", "require_keys")
    settings = load_settings(
        {
            "serve": {word: given[word] for word in words},
            "models": {"default": given["model"]},
            "sandbox": {"backend": given["backend"]},
        }
    )
    state = ("postgres",) if settings.serve.database else ()
    check_extras("the HTTP API", settings, "serve", *state)
    from assay.server.api.serve import serve

    def announce(url: str, backend: str) -> None:
        if as_json:
            click.echo(to_json({"url": url, "backend": backend}))
            sys.stdout.flush()
        click.echo(f"listening on {url} (backend {backend}); Ctrl-C stops it", err=True)

    with written_beside():
        anyio.run(serve, settings, announce)
    return ExitCode.ACCEPTED


@click.group(name="keys")
def keys_command() -> None:
    """Manage API keys for `assay serve`.

    Once a key exists, every request must send one. A key is shown once and kept as a digest.
    """


@keys_command.command()
@click.argument("name")
@click.option("--user", help="User of the key; keys of one user share everything.  [default: NAME]")
@click.option(
    "--role",
    type=click.Choice(["admin", "user", "read-only"]),
    default="user",
    show_default=True,
    help="An admin also manages keys; read-only cannot change anything.",
)
@click.option("--requests-per-minute", type=click.IntRange(min=1), help="[default: the settings]")
@click.option("--runs", type=click.IntRange(min=1), help="Maximum number of unfinished runs.")
@click.option("--tokens-per-day", type=click.IntRange(min=1))
@click.option("--usd-per-day", type=click.FloatRange(min=0))
@JSON_OBJECT
def create(name: str, user: str | None, *, as_json: bool, **more: Any) -> int:
    """Create an API key called NAME."""
    import anyio

    async def make() -> "tuple[KeyRecord, str]":
        async with _open_keys() as keys:
            return await keys.create(name=name, user=user or name, **more)

    record, key = anyio.run(make)
    if as_json:
        click.echo(to_json({**asdict(record), "key": key}))
    else:
        click.echo(key)
        click.echo(
            f"for {record.user} ({record.role}), id {record.id}; this is the only time it is shown",
            err=True,
        )
    return ExitCode.ACCEPTED


@keys_command.command(name="list")
@JSON_ARRAY
def list_keys(*, as_json: bool) -> int:
    """List API keys without their secrets."""
    import anyio

    async def read() -> "tuple[KeyRecord, ...]":
        async with _open_keys() as keys:
            return await keys.list()

    found = anyio.run(read)
    if as_json:
        click.echo(to_json(found))
    elif found:
        _print_table(found)
    else:
        click.echo("no keys yet; `assay keys create NAME` creates one")
    return ExitCode.ACCEPTED


@keys_command.command()
@click.argument("key_id", metavar="ID")
@YES
@JSON_OBJECT
def revoke(key_id: str, *, yes: bool, as_json: bool) -> int:
    """Revoke the API key ID, from its next request on."""
    import anyio

    confirm(f"Revoke the key {key_id}? Its clients lose access.", yes=yes)

    async def end() -> None:
        async with _open_keys() as keys:
            await keys.revoke(key_id)

    anyio.run(end)
    click.echo(to_json({"revoked": key_id}) if as_json else f"revoked {key_id}")
    return ExitCode.ACCEPTED


@asynccontextmanager
async def _open_keys() -> "AsyncGenerator[ApiKeys]":
    from assay.server.auth import ApiKeys
    from assay.server.db.store import open_store
    from assay.settings.load import load_settings

    settings = load_settings()
    database = settings.serve.database
    url = database.get_secret_value() if database else ""
    async with open_store(settings.state_dir, url) as store:
        yield ApiKeys(store)


def _print_table(found: "tuple[KeyRecord, ...]") -> None:
    from rich.table import Table

    from assay.cli.render.view import open_console

    table = Table(box=None, pad_edge=False)
    for title in ("id", "name", "user", "role", "made", "last used", ""):
        table.add_column(title)
    for record in found:
        table.add_row(
            record.id,
            record.name,
            record.user,
            record.role,
            _day(record.created_at),
            _day(record.last_used_at),
            "revoked" if record.revoked_at else "",
        )
    open_console().print(table)


def _day(moment: float | None) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d") if moment else "never"
