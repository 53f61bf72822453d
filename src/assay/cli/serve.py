"""`assay serve`: the HTTP API and the web page."""

import json
import logging
import sys
from typing import Any

import click

from assay.contracts.errors import ExitCode


@click.command(name="serve")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 8000; 0 for a free one]")
@click.option("--model", help="Who answers: `auto`, `local`, PROVIDER[:MODEL] …")
@click.option("--backend", help="Where code runs. Default: as the settings say.")
@click.option("--require-keys", is_flag=True, default=None, help="Let nobody in without a key.")
@click.option("--json", "as_json", is_flag=True, help="Print where we listen as a JSON object.")
@click.option("--log-json", is_flag=True, help="Write the log to stderr too, as JSON lines.")
def command(*, as_json: bool, log_json: bool, **given: Any) -> int:  # noqa: ANN401 - settings, checked as such
    """Serve conversations and runs over HTTP, with a web page, until told to end.

    SIGTERM and Ctrl-C let turns come to their end first, for `serve.drain_s`; a second one does
    not. Runs are taken up again by the next start. Without keys, only this machine is served.
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
        click.echo(f"listening on {url} (backend {backend}); Ctrl-C ends it", err=True)

    with written_beside():
        anyio.run(serve, settings, announce)
    return ExitCode.ACCEPTED


def _log_in_lines() -> None:
    from assay.telemetry.logs import InLines, pattern_redaction

    screen = logging.StreamHandler(sys.stderr)
    screen.setFormatter(InLines(pattern_redaction()))
    logging.getLogger("assay").addHandler(screen)
