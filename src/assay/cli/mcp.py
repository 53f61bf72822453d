"""`assay mcp`: serve sandboxes to MCP clients, create tokens, print configurations."""

from typing import TYPE_CHECKING, Final

import click

from assay.cli.errors import log_to_stderr
from assay.cli.options import JSON_OBJECT, YES, json_option, to_json
from assay.cli.terminal import confirm
from assay.contracts.errors import UsageError

if TYPE_CHECKING:
    from assay.auth.tokens import TokenFile
    from assay.mcp.client_configs import ClientName
    from assay.mcp.serve import Which

_WHERE: Final = {
    "claude-desktop": "claude_desktop_config.json (Settings > Developer > Edit Config)",
    "cursor": ".cursor/mcp.json of a project, or of your home folder",
    "vscode": ".vscode/mcp.json",
    "openai-agents": "your program; examples/openai_agents_sdk.py is a complete one",
}


@click.group(name="mcp")
def command() -> None:
    """Serve sandboxes to MCP clients.

    Every client has its own workspace. Without tokens, only this machine is served.
    """


@command.command()
@click.argument("which", type=click.Choice(["filesystem", "executor", "all"]))
@click.option("--stdio", is_flag=True, help="Serve over stdin and stdout instead of HTTP.")
@click.option("--host", default=None, help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65534),
    help="Port; `all` takes the next one too.  [default: 7101 for files, 7102 for programs]",
)
@json_option("Print the addresses as one JSON object.")
@click.option("--verbose", "-v", is_flag=True, help="Show more of the log on stderr.")
def serve(
    which: "Which", host: str | None, port: int | None, *, stdio: bool, as_json: bool, verbose: bool
) -> None:
    """Serve a sandbox's files, programs in it, or both.

    Both together share workspaces: each sees what the other writes.
    """
    if stdio and (host is not None or port is not None or as_json):
        raise UsageError("--stdio has no address", hint="leave out --host, --port and --json")
    # Never to stdout: over stdio, that is the protocol.
    log_to_stderr(verbose=verbose)
    from assay.settings.load import load_settings
    from assay.wiring import check_extras

    settings = load_settings()
    check_extras("serving MCP", settings, "mcp")
    from assay.mcp.serve import serve

    def announce(addresses: dict[str, str]) -> None:
        if as_json:
            click.echo(to_json(addresses))
        for name, url in addresses.items():
            click.echo(f"{name}: {url}", err=True)

    serve(which, settings, None if stdio else host or "127.0.0.1", port, announce)


@command.command()
@click.argument("name", required=False)
@click.option("--remove", is_flag=True, help="Remove the token of NAME.")
@YES
@JSON_OBJECT
def token(name: str | None, *, remove: bool, yes: bool, as_json: bool) -> None:
    """Create a token for the client NAME; without a name, list the clients that have one.

    A token is shown once and kept only as a hash. If tokens exist, calls over HTTP need one, and
    each token has its own workspace. Running servers accept new tokens and refuse removed ones
    immediately.
    """
    tokens = _token_file()
    if name is None:
        names = sorted(tokens.read().digests)
        click.echo(to_json({"tokens": names}) if as_json else "\n".join(names) or "no tokens")
    elif remove:
        confirm(f"Remove the token of {name}? Its client loses access.", yes=yes)
        tokens.remove(name)
        click.echo(to_json({"removed": name}) if as_json else f"removed the token of {name}")
    else:
        made = tokens.add(name)
        click.echo(to_json({"name": name, "token": made}) if as_json else made)
        click.echo(f"its hash is in {tokens.path}; this is the only time it is shown", err=True)


@command.command()
@click.argument(
    "client", type=click.Choice(["claude-desktop", "cursor", "vscode", "openai-agents"])
)
@click.option("--http", is_flag=True, help="Use running servers instead of starting one.")
def config(client: "ClientName", *, http: bool) -> None:
    """Print the configuration with which a client uses the servers.

    If tokens exist, it makes HTTP clients send one.
    """
    from assay.mcp.client_configs import configuration

    needed = http and bool(_token_file().read())
    click.echo(configuration(client, http=http, token=needed), nl=False)
    click.echo(f"put this into {_WHERE[client]}", err=True)


def _token_file() -> "TokenFile":
    from assay.auth.tokens import mcp_tokens
    from assay.settings.load import load_settings

    return mcp_tokens(load_settings())
