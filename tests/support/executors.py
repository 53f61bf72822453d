"""Executors for tests: in this process, with certificates and tokens of their own."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.text import TextReceiveStream

from assay.auth.certificates import (
    make_authority,
    make_client_certificate,
    make_server_certificate,
)
from assay.contracts.execution import Isolation
from assay.contracts.ports import SandboxBackend
from assay.executor.serve import Executor, open_executor
from assay.sandbox.remote.backend import open_remote
from assay.settings.executor import ExecutorSettings, RemoteSettings
from tests.support.backends import Tier, live, open_native


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """The files of one authority."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def client(self, name: str, *, days: int = 30) -> dict[str, Path]:
        """Return the settings of a client with a certificate of that name."""
        pair = make_client_certificate(self.folder, name, days=days)
        return {"ca": self.ca, "cert": pair.cert, "key": pair.key}

    def server(self) -> dict[str, Path]:
        """Return the settings of an executor that asks for certificates."""
        return {
            "cert": self.folder / "server.crt",
            "key": self.folder / "server.key",
            "client_ca": self.ca,
        }


def make_certificates(folder: Path) -> Certificates:
    """Make an authority and a certificate for an executor on this machine."""
    make_authority(folder)
    make_server_certificate(folder, ("localhost", "127.0.0.1"), days=30)
    return Certificates(folder=folder)


@asynccontextmanager
async def open_served(
    backend: SandboxBackend, folder: Path, **settings: object
) -> AsyncGenerator[Executor]:
    """Serve a backend on a free port, without metrics."""
    given = ExecutorSettings.model_validate({"port": 0, "metrics_port": 0, **settings})
    audit_file = folder / "audit.jsonl"
    async with open_executor(backend, given, audit_file=audit_file, executions=32) as executor:
        yield executor


@asynccontextmanager
async def open_client(*ports: int, **settings: object) -> AsyncGenerator[SandboxBackend]:
    """Use executors on this machine."""
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    given = {"addresses": addresses, "connect_timeout_s": 5.0, **settings}
    remote = RemoteSettings.model_validate(given)
    async with open_remote(remote, Isolation.NONE) as backend:
        yield backend


@asynccontextmanager
async def open_native_far_away(tier: Tier, folder: Path) -> AsyncGenerator[SandboxBackend]:
    """Open a backend that leads through mutual TLS to a native one, and outlives single tests.

    The executor is in this process, so that all that a program could find there is there: the
    attacks look for what is in the memory, the environment and the files of whoever serves.
    """
    certificates = make_certificates(folder / "certs")
    opened: asyncio.Future[SandboxBackend] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()
    async with open_native(tier) as native:
        opening = _served_and_used(native, folder, certificates)
        life = asyncio.create_task(live(opening, opened, done))
        try:
            yield await opened
        finally:
            done.set()
            await life


@asynccontextmanager
async def _served_and_used(
    native: SandboxBackend, folder: Path, certificates: "Certificates"
) -> AsyncGenerator[SandboxBackend]:
    async with (
        open_served(native, folder, **certificates.server()) as executor,
        open_client(executor.port, **certificates.client("alice")) as remote,
    ):
        yield remote


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorProcess:
    """An executor in a process of its own."""

    process: anyio.abc.Process
    port: int


@asynccontextmanager
async def open_process(folder: Path, **settings: Path) -> AsyncGenerator[ExecutorProcess]:
    """Start `assay executor serve` on a free port, and end it however the test goes."""
    command, environment = _prepare(folder, settings)
    process = await anyio.open_process(command, env=environment, stderr=None)
    async with process:
        try:
            with anyio.fail_after(60):
                assert process.stdout
                announced = await anext(aiter(TextReceiveStream(process.stdout)))
            yield ExecutorProcess(process=process, port=_port(announced))
        finally:
            if process.returncode is None:
                process.kill()


def _port(announced: str) -> int:
    return int(announced.partition('"address": "127.0.0.1:')[2].partition('"')[0])


def _prepare(folder: Path, settings: dict[str, Path]) -> tuple[list[str], dict[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.toml"
    config.write_text("[sandbox]\npreload = []\npool_size = 1\n")
    flags = [
        part
        for name, value in settings.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = [sys.executable, "-m", "assay", "executor", "serve", "--port", "0"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "ASSAY_CONFIG": str(config),
        "ASSAY_RUNTIME_DIR": str(folder / "runtime"),
    }
    return [*command, "--metrics-port", "0", "--json", *flags], environment
