"""`assay certs`: TLS certificates for an executor and its clients, signed by a private CA."""

import json
from pathlib import Path

import click


@click.group(name="certs")
def command() -> None:
    """Create TLS certificates for an executor and its clients."""


@command.command()
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("certs"),
    show_default=True,
    help="Folder for the certificates.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    help="Host name or address of an executor (repeatable).  [default: localhost, 127.0.0.1, ::1]",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    default=("client",),
    show_default=True,
    help="Name by which an executor knows a client (repeatable).",
)
@click.option(
    "--days",
    type=click.IntRange(1, 825),
    default=365,
    show_default=True,
    help="Validity in days.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the files as a JSON object.")
def make(
    folder: Path, servers: tuple[str, ...], clients: tuple[str, ...], days: int, *, as_json: bool
) -> None:
    """Create a private CA, and certificates that it signs.

    An existing CA is used again, so that you can add clients. Only the owner can read the key
    files; the CA's key is needed only here.
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
