"""`assay serve`: the HTTP API and the web page."""

import json
import logging
import sys
from typing import Any

import click

from assay.contracts.errors import ExitCode


@click.command(name="serve")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 8000; 0: any free]")
@click.option("--model", help="Model to use: `auto`, `local`, PROVIDER[:MODEL] …")
@click.option("--backend", help="Sandbox backend.  [default: sandbox.backend]")
@click.option("--require-keys", is_flag=True, default=None, help="Require an API key.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object.")
@click.option("--log-json", is_flag=True, help="Also write the log to stderr, as JSON lines.")
def command(*, as_json: bool, log_json: bool, **given: Any) -> int:
    """Serve the HTTP API and the web page until a signal stops the server.

    SIGTERM and Ctrl-C let running turns finish within `serve.drain_s`; a second signal does not.
    The next start resumes unfinished runs. Without API keys, only this machine is served.
    """
    import anyio

    from assay.settings.load import load_settings
    from assay.telemetry.logs import written_beside
    from assay.wiring import check_extras

    if log_json:
        _log_in_lines()
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
            click.echo(json.dumps({"url": url, "backend": backend}))
            sys.stdout.flush()
        click.echo(f"listening on {url} (backend {backend}); Ctrl-C stops it", err=True)

    with written_beside():
        anyio.run(serve, settings, announce)
    return ExitCode.ACCEPTED


def _log_in_lines() -> None:
    from assay.telemetry.logs import InLines, pattern_redaction

    screen = logging.StreamHandler(sys.stderr)
    screen.setFormatter(InLines(pattern_redaction()))
    logging.getLogger("assay").addHandler(screen)
