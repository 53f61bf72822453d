"""`assay certs`: certificates for an executor and its clients, from an authority of one's own."""

import json
from pathlib import Path

import click


@click.group(name="certs")
def command() -> None:
    """Make certificates for an executor and its clients."""


@command.command()
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("certs"),
    show_default=True,
    help="Where to put them.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    help="A name or address executors are reached by; may be given again.  "
    "[default: localhost, 127.0.0.1, ::1]",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    default=("client",),
    show_default=True,
    help="A client, by the name an executor is to know it by; may be given again.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 825),
    default=365,
    show_default=True,
    help="How long they hold.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the files as a JSON object.")
def make(
    folder: Path, servers: tuple[str, ...], clients: tuple[str, ...], days: int, *, as_json: bool
) -> None:
    """Make a private authority, and certificates that it signs.

    An authority that is there already is used again, so that more clients can be added. Keys can
    be read by their owner alone; that of the authority is needed only here.
    """
    from assay.auth.certificates import (
        make_authority,
        make_client_certificate,
        make_server_certificate,
    )

    made = {"ca": make_authority(folder)}
    server = make_server_certificate(
        folder, servers or ("localhost", "127.0.0.1", "::1"), days=days
    )
    made |= {"server_cert": server.cert, "server_key": server.key}
    for client in clients:
        pair = make_client_certificate(folder, client, days=days)
        made |= {f"{client}_cert": pair.cert, f"{client}_key": pair.key}
    if as_json:
        click.echo(json.dumps({name: str(path) for name, path in made.items()}))
        return
    for path in made.values():
        click.echo(path)
    click.echo(
        f"hint: assay executor serve --cert {server.cert} --key {server.key} "
        f"--client-ca {made['ca']}",
        err=True,
    )
