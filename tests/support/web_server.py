"""`assay serve` from outside, on a port of its own, to be ended, killed and started again."""

import json
import os
import signal
import socket
import subprocess  # noqa: TID251 - the server is looked at from outside
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select

_STARTS_WITHIN_S = 60.0
_ENDS_WITHIN_S = 60.0


@dataclass(kw_only=True)
class WebServer:
    """A server that can be started more than once, with the same state and at the same address."""

    home: Path
    port: int
    environment: dict[str, str]
    words: tuple[str, ...] = ()
    process: "subprocess.Popen[str] | None" = field(default=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = (sys.executable, "-m", "assay", "serve", "--json", "--port", str(self.port))
        with (self.home / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *self.words],
                cwd=self.home,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        ready, _, _ = select([self.process.stdout], [], [], _STARTS_WITHIN_S)
        line = self.process.stdout.readline() if ready else ""
        assert line, (self.home / "server.log").read_text()[-2000:]
        assert json.loads(line)["url"].startswith("http://127.0.0.1:")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it as told, and wait until it is gone."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(_ENDS_WITHIN_S)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


def free_port() -> int:
    """A port that nobody listens on; somebody else may be quicker, which the start would tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve_web(home: Path, *words: str, base_url: str, **more: str) -> Generator[WebServer]:
    """Serve with the model at an address; `more` are settings by their names in the environment."""
    environment = {
        **os.environ,  # noqa: TID251 - what a person's shell would hand on
        "XDG_STATE_HOME": str(home / "state"),
        "ASSAY_BASE_URL": base_url,
        "ASSAY_CHAT__CELLS": "blocks",  # as the replies of these tests are written
        "ASSAY_SERVE__SHUTDOWN_GRACE_S": "0.5",
        **more,
    }
    server = WebServer(home=home, port=free_port(), environment=environment)
    server.words = ("--model", "custom:keyed", *words)
    server.start()
    try:
        yield server
    finally:
        server.end()
