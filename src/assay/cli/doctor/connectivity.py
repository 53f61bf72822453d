"""Checks of models, executors and local servers, each with a short timeout."""

import os
import shutil
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import anyio

from assay.contracts.distribution import install_command
from assay.models.resolve import list_available
from assay.sandbox.factory import BACKENDS
from assay.sandbox.native.doctor.explain import Finding
from assay.settings.load import ModelSettings, SandboxSettings, Settings, credentials_file
from assay.settings.sections import ForeignServerSettings

_KNOCK_S: Final = 2.0
_TRIED_ELSEWHERE: Final = ("native", "docker", "docker+runsc")
"""Backends that the other checks of this machine cover."""
MCP_PORTS: Final = {"MCP server for files": 7101, "MCP server for programs": 7102}


async def look_at_models(settings: ModelSettings) -> AsyncIterator[Finding]:
    """Yield the usable models, and why the others are not usable."""
    found = await list_available(settings)
    anybody = any(one.usable for one in found)
    for one in found:
        if one.usable:
            told = f"{one.reason}; `auto` takes it" if one.by_auto else one.reason
            yield Finding(name=one.name, status="ok", detail=told)
            continue
        yield Finding(
            name=one.name,
            status="info",
            detail="not usable",
            cause=one.reason,
            fix=one.fix,
        )
    if not anybody:
        yield Finding(
            name="models",
            status="missing",
            detail="none is usable",
            cause="`assay run` and `assay chat` need one",
            fix=f"{install_command('local')} for the embedded model, or set a provider's API key, "
            f"in the environment or in {credentials_file()}",
        )


async def look_at_backends(settings: SandboxSettings) -> AsyncIterator[Finding]:
    """Yield which backends on other machines are reachable."""
    for name in BACKENDS:
        if name == "remote":
            async for finding in _look_at_executors(settings):
                yield finding
        elif name not in _TRIED_ELSEWHERE:
            told = f"not tried; `assay sandbox selftest --backend {name}` tests it"
            yield Finding(name=f"backend {name}", status="info", detail=told)


async def _look_at_executors(settings: SandboxSettings) -> AsyncIterator[Finding]:
    needed = settings.backend == "remote"
    if not settings.remote.addresses:
        yield Finding(
            name="backend remote",
            status="failed" if needed else "info",
            detail="no executor is set",
            cause="sandbox.remote.addresses is empty",
            fix="set sandbox.remote.addresses to HOST:PORT of an `assay executor serve`",
        )
    for address in settings.remote.addresses:
        host, _, port = address.rpartition(":")
        name = f"executor {address}"
        if await _answers(host.strip("[]"), int(port)):
            yield Finding(name=name, status="ok", detail="accepts connections")
            continue
        yield Finding(
            name=name,
            status="failed" if needed else "missing",
            detail="does not answer",
            cause=f"no connection in {_KNOCK_S:g} s",
            fix="start it there with `assay executor serve`, or correct the address",
        )


async def look_at_services(settings: Settings) -> AsyncIterator[Finding]:
    """Yield which of Assay's servers listen here, and which foreign MCP servers are reachable."""
    ports = {name: ("127.0.0.1", port, "assay mcp serve all") for name, port in MCP_PORTS.items()}
    executor = settings.executor
    ports["executor"] = (executor.host, executor.port, "assay executor serve")
    for name, (host, port, command) in ports.items():
        if await _answers(host, port):
            yield Finding(name=name, status="ok", detail=f"{host}:{port} accepts connections")
        else:
            told = f"nothing listens at {host}:{port}"
            yield Finding(name=name, status="info", detail=told, fix=f"`{command}` starts it")
    path = os.pathsep.join(settings.sandbox.search_path)
    for name, server in settings.tools.mcp.items():
        yield await _look_at_foreign(name, server, path)


async def _look_at_foreign(name: str, server: ForeignServerSettings, path: str) -> Finding:
    title = f"foreign MCP server {name}"
    if server.command:
        program = server.command[0]
        if shutil.which(program, path=path):
            return Finding(name=title, status="ok", detail=f"{program} can be started")
        return Finding(
            name=title,
            status="failed",
            detail=f"{program} cannot be started",
            cause="the program was not found",
            fix=f"install it, or correct tools.mcp.{name}.command",
        )
    parts = urlsplit(server.url or "")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    where = f"{parts.hostname}:{port}"
    if await _answers(parts.hostname or "", port):
        return Finding(name=title, status="ok", detail=f"{where} accepts connections")
    return Finding(
        name=title,
        status="failed",
        detail=f"{where} does not answer",
        cause=f"no connection in {_KNOCK_S:g} s",
        fix=f"start it, or correct tools.mcp.{name}.url",
    )


async def _answers(host: str, port: int) -> bool:
    """Return whether a server accepts connections there; nothing is sent."""
    try:
        with anyio.fail_after(_KNOCK_S):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except (OSError, TimeoutError):
        return False
    return True
