"""`assay executor` and `assay-executor`: serve sandboxes to other machines over gRPC.

`assay certs` creates TLS certificates for an executor and its clients, signed by a private CA.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.errors import leave, log_to_stderr, run_command
from assay.cli.options import FILE, FOLDER, JSON_OBJECT, json_option, to_json
from assay.contracts.errors import ExitCode
from assay.sandbox.native.kernel.open_files import raise_limit

if TYPE_CHECKING:
    from assay.settings.executor import RemoteSettings
    from assay.settings.load import Settings


def main() -> None:
    """Run the command `assay-executor` of this process and leave with its exit code."""
    raise_limit()
    leave(run_command(command, sys.argv[1:], name="assay-executor"))


@click.group(name="executor", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Serve sandboxes to other machines over gRPC."""


@command.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 50051; 0: any free]")
@click.option("--cert", type=FILE, help="Server certificate, PEM.")
@click.option("--key", type=FILE, help="Private key, PEM.")
@click.option(
    "--client-ca",
    type=FILE,
    help="CA that signs client certificates.",
)
@click.option(
    "--token-file",
    type=FILE,
    help="File with the digests of client tokens.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="[default: 50052; 0: none]")
@json_option("Print the address as one JSON object.")
@click.option("--verbose", "-v", is_flag=True, help="Show more of the log on stderr.")
def serve(*, as_json: bool, verbose: bool, **given: Any) -> int:
    """Serve sandboxes until a signal stops the executor.

    SIGTERM and Ctrl-C let running programs finish within `executor.shutdown_grace_s`; a second
    signal does not. Without certificates or tokens, only this machine is served.
    """
    import anyio

    from assay.settings.load import load_settings

    log_to_stderr(verbose=verbose)
    # Only the log of gRPC reports failed handshakes.
    os.environ.pop("GRPC_VERBOSITY", None)  # noqa: TID251 - a word to gRPC, not a setting
    # A shell ignores SIGQUIT for background jobs, and sandboxed programs would inherit that.
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    settings = load_settings({"executor": given})
    return anyio.run(_serve, settings, as_json)


async def _serve(settings: "Settings", as_json: bool) -> int:  # noqa: FBT001 - anyio.run hands over by position
    import anyio

    from assay.auth.credentials import expiry_warning
    from assay.executor.serve import open_executor
    from assay.executor.tls_audit import overhearing
    from assay.sandbox.factory import open_backend

    options = settings.executor
    audit_file = options.audit_file or settings.state_dir / "executor" / "audit.jsonl"
    executions = options.executions or settings.sandbox.max_concurrent
    grace_s, host = options.shutdown_grace_s, options.host

    async def drain() -> None:
        if not await executor.drain(grace_s):
            _tell("some programs have not finished; stopping them")
        tasks.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            open_backend(settings.sandbox) as backend,
            open_executor(
                backend, options, audit_file=audit_file, executions=executions
            ) as executor,
        ):
            with overhearing(executor.note_handshake):
                address, metrics_port = f"{host}:{executor.port}", executor.metrics_port or None
                if as_json:
                    fields = {"address": address, "metrics_port": metrics_port}
                    click.echo(to_json({**fields, "backend": backend.name}))
                if warning := expiry_warning(settings.executor.cert):
                    _tell(f"warning: {warning}")
                _tell(f"listening on {address} ({executor.description}), backend {backend.name}")
                if metrics_port:
                    _tell(f"metrics on port {metrics_port}")
                await anext(signals)
                _tell(f"stopping; running programs have {grace_s:g} s to finish")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(drain)
                    async for _ in signals:
                        _tell("stopping immediately")
                        tasks.cancel_scope.cancel()
    return ExitCode.ACCEPTED


def _tell(what: str) -> None:
    click.echo(what, err=True)


@command.command()
@click.argument("name")
@click.option(
    "--token-file",
    type=FILE,
    help="File for the token digests.  [default: executor.token_file]",
)
@JSON_OBJECT
def token(name: str, token_file: Path | None, *, as_json: bool) -> None:
    """Create a token for the client NAME.

    It is shown once and kept only as a digest. An executor that uses this file
    accepts the token immediately, and refuses it after you remove its line.
    """
    from assay.auth.tokens import executor_tokens
    from assay.settings.load import load_settings

    settings = load_settings()
    path = token_file or settings.executor.token_file or settings.state_dir / "executor" / "tokens"
    made = executor_tokens(path).add(name)
    click.echo(to_json({"name": name, "token": made, "file": path}) if as_json else made)
    _tell(f"its digest is in {path}; this is the only time it is shown")


@command.command()
@JSON_OBJECT
def check(*, as_json: bool) -> int:
    """Check whether the executors of `sandbox.remote` serve, and how they isolate."""
    import anyio

    from assay.settings.load import load_settings

    found = anyio.run(_check, load_settings().sandbox.remote)
    if as_json:
        click.echo(to_json(found))
    else:
        for address, state in found.items():
            told = state.get("isolation") or f"not available: {state['error']}"
            click.echo(f"{address}: {told}")
            if state.get("hint"):
                click.echo(f"  hint: {state['hint']}")
    dead = [address for address, state in found.items() if "error" in state]
    if not dead:
        return ExitCode.ACCEPTED
    _tell(f"{len(dead)} of {len(found)} executors cannot be used")
    return ExitCode.INFRASTRUCTURE


async def _check(settings: "RemoteSettings") -> dict[str, dict[str, str]]:
    """Ask all executors concurrently; return the state of each as JSON.

    Raises:
        UsageError: If no executor is set, or a certificate or token file is unusable.
    """
    import anyio

    from assay.contracts.errors import SandboxUnavailableError
    from assay.contracts.execution import Isolation
    from assay.sandbox.remote.backend import open_remote
    from assay.sandbox.remote.grpc_transport import prepare_access

    prepare_access(settings)
    states: dict[str, dict[str, str]] = {}

    async def ask(address: str) -> None:
        alone = settings.model_copy(update={"addresses": (address,)})
        try:
            async with open_remote(alone, Isolation.NONE) as backend:
                states[address] = {"status": "serving", "isolation": backend.isolation.value}
        except SandboxUnavailableError as error:
            states[address] = {
                "status": "unavailable",
                "error": str(error),
                "hint": error.hint,
            }

    async with anyio.create_task_group() as asking:
        for address in settings.addresses:
            asking.start_soon(ask, address)
    return {address: states[address] for address in settings.addresses}


@click.group(name="certs")
def certs_command() -> None:
    """Create TLS certificates for an executor and its clients."""


@certs_command.command()
@click.option(
    "--out",
    "folder",
    type=FOLDER,
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
@json_option("Print the files as a JSON object.")
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
        click.echo(to_json(made))
        return
    for path in made.values():
        click.echo(path)
    click.echo(
        f"hint: assay executor serve --cert {server.cert} --key {server.key} "
        f"--client-ca {made['ca']}",
        err=True,
    )
