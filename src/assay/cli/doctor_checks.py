"""The checks of `assay doctor` beyond isolation; they run concurrently, each with a timeout.

They cover keys, extras, toolchains and folders of this installation, and the connections to models,
executors and local servers. No secret is shown.
"""

import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from assay.contracts.distribution import DISTRIBUTION, install_command
from assay.contracts.errors import AssayError
from assay.models.resolve import list_available
from assay.sandbox.native.doctor.explain import Finding
from assay.settings.load import (
    KEY_VARIABLES,
    ModelSettings,
    SandboxSettings,
    Settings,
    credentials_file,
    settings_file,
)
from assay.settings.types import backend_names

_KNOCK_S: Final = 2.0
_TRIED_ELSEWHERE: Final = ("native", "docker", "docker+runsc")
"""Backends that the other checks of this machine cover."""
MCP_PORTS: Final = {"MCP server for files": 7101, "MCP server for programs": 7102}


async def look_at_models(settings: ModelSettings) -> AsyncIterator[Finding]:
    """Yield the usable models, and why the others are not usable."""
    found = await list_available(settings)
    for one in found:
        if one.usable:
            reason = f"{one.reason}; `auto` takes it" if one.by_auto else one.reason
            yield Finding(name=one.name, status="ok", detail=reason)
        else:
            yield Finding(
                name=one.name, status="info", detail="not usable", cause=one.reason, fix=one.fix
            )
    if not any(one.usable for one in found):
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
    needed = settings.backend == "remote"
    for name in backend_names():
        if name not in ("remote", *_TRIED_ELSEWHERE):
            how = f"not tried; `assay sandbox selftest --backend {name}` tests it"
            yield Finding(name=f"backend {name}", status="info", detail=how)
        elif name == "remote" and not settings.remote.addresses:
            yield Finding(
                name="backend remote",
                status="failed" if needed else "info",
                detail="no executor is set",
                cause="sandbox.remote.addresses is empty",
                fix="set sandbox.remote.addresses to HOST:PORT of an `assay executor serve`",
            )
        elif name == "remote":
            for address in settings.remote.addresses:
                host, _, port = address.rpartition(":")
                silent = Finding(
                    name=f"executor {address}",
                    status="failed" if needed else "missing",
                    detail="does not answer",
                    cause=f"no connection in {_KNOCK_S:g} s",
                    fix="start it there with `assay executor serve`, or correct the address",
                )
                yield await _knock(host.strip("[]"), int(port), "accepts connections", silent)


async def look_at_services(settings: Settings) -> AsyncIterator[Finding]:
    """Yield which of Assay's servers listen here, and which foreign MCP servers are reachable."""
    ports = {name: ("127.0.0.1", port, "assay mcp serve all") for name, port in MCP_PORTS.items()}
    executor = settings.executor
    ports["executor"] = (executor.host, executor.port, "assay executor serve")
    for name, (host, port, command) in ports.items():
        silent = Finding(
            name=name,
            status="info",
            detail=f"nothing listens at {host}:{port}",
            fix=f"`{command}` starts it",
        )
        yield await _knock(host, port, f"{host}:{port} accepts connections", silent)
    path = os.pathsep.join(settings.sandbox.search_path)
    for name, server in settings.tools.mcp.items():
        title = f"foreign MCP server {name}"
        if not server.command:
            parts = urlsplit(server.url or "")
            port = parts.port or (443 if parts.scheme == "https" else 80)
            silent = Finding(
                name=title,
                status="failed",
                detail=f"{parts.hostname}:{port} does not answer",
                cause=f"no connection in {_KNOCK_S:g} s",
                fix=f"start it, or correct tools.mcp.{name}.url",
            )
            ready = f"{parts.hostname}:{port} accepts connections"
            yield await _knock(parts.hostname or "", port, ready, silent)
        elif shutil.which(program := server.command[0], path=path):
            yield Finding(name=title, status="ok", detail=f"{program} can be started")
        else:
            yield Finding(
                name=title,
                status="failed",
                detail=f"{program} cannot be started",
                cause="the program was not found",
                fix=f"install it, or correct tools.mcp.{name}.command",
            )


async def _knock(host: str, port: int, ready: str, silent: Finding) -> Finding:
    """Return `ready` as a finding if a server accepts connections there, else `silent`.

    Nothing is sent.
    """
    try:
        with anyio.fail_after(_KNOCK_S):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except (OSError, TimeoutError):
        return silent
    return Finding(name=silent.name, status="ok", detail=ready)


_LEAST_FREE: Final = 1 << 30
_REQUIRED: Final = re.compile(r"""^([\w.-]+).*;.*\bextra\s*==\s*['"]([\w-]+)['"]""")
_TOOLCHAINS: Final = (
    ("node", ("node", "npm"), "JavaScript"),
    ("go", ("go",), "Go"),
    ("rust", ("cargo", "rustc"), "Rust"),
    ("java", ("javac", "java"), "Java"),
    ("C and C++", ("c++", "cmake", "make"), "C++"),
)


def look_at_keys(settings: ModelSettings) -> Iterator[Finding]:
    """Yield which keys are set, without their values."""
    for name in KEY_VARIABLES:
        key = settings.api_keys.get(name)
        if key is None or not key.get_secret_value().strip():
            fix = f"set {name}, or write it into {credentials_file()}"
            yield Finding(name=name, status="info", detail="not set", fix=fix)
        elif any(letter.isspace() for letter in key.get_secret_value().strip()):
            yield Finding(
                name=name,
                status="failed",
                detail="set, but no provider accepts it",
                cause="it contains a space or a line break",
                fix=f"set {name} to the key alone",
            )
        else:
            yield Finding(name=name, status="ok", detail="set")


def look_at_extras(requirements: Sequence[str] | None = None) -> Iterator[Finding]:
    """Yield which extras of this package are fully installed."""
    if requirements is None:
        requirements = metadata.requires(DISTRIBUTION) or ()
    missing: dict[str, list[str]] = {}
    for requirement in requirements:
        if (found := _REQUIRED.match(requirement)) and found[1] != DISTRIBUTION:
            absent = missing.setdefault(found[2], [])
            try:
                metadata.version(found[1])
            except metadata.PackageNotFoundError:
                absent.append(found[1])
    for extra, names in sorted(missing.items()):
        if not names:
            yield Finding(name=extra, status="ok", detail="installed")
            continue
        yield Finding(
            name=extra,
            # Extras are optional; a command that needs one reports it.
            status="info",
            detail="not installed",
            cause=f"without {', '.join(names)}",
            fix=install_command(extra),
        )


def look_at_toolchains(search_path: Sequence[str]) -> Iterator[Finding]:
    """Yield which languages other than Python can be built and tested here."""
    path = os.pathsep.join(search_path)
    for name, programs, language in _TOOLCHAINS:
        places = {program: shutil.which(program, path=path) for program in programs}
        absent = [program for program, place in places.items() if place is None]
        if not absent:
            yield Finding(name=name, status="ok", detail=str(places[programs[0]]))
            continue
        yield Finding(
            name=name,
            status="info",
            detail=f"without {', '.join(absent)}",
            cause=f"programs and tests in {language} need it",
            fix=f"install {', '.join(absent)}, somewhere on PATH",
        )


def look_at_folders(settings: Settings) -> Iterator[Finding]:
    """Yield which files are read, and whether folders are writable, by writing there."""
    for name, path in (("settings file", settings_file()), ("credentials", credentials_file())):
        told = str(path) if path.is_file() else f"none; it would be {path}"
        yield Finding(name=name, status="ok" if path.is_file() else "info", detail=told)
    yield _look_at_folder("state folder", settings.state_dir, "state_dir")
    yield _look_at_folder("models", settings.models.cache_dir, "models.cache_dir")
    yield _look_at_folder("packages", settings.sandbox.packages_dir, "sandbox.packages_dir")


def _look_at_folder(name: str, folder: Path, setting: str) -> Finding:
    home = next(each for each in (folder, *folder.parents) if each.exists())
    fix = f"make it writable for you, or set {setting} to another folder"
    try:
        with tempfile.TemporaryFile(dir=home):
            free = shutil.disk_usage(home).free
    except OSError as error:
        told = f"{folder} cannot be written"
        cause = error.strerror or type(error).__name__
        return Finding(name=name, status="failed", detail=told, cause=cause, fix=fix)
    told = f"{folder}, {free / 1e9:.1f} GB free" + ("" if folder == home else ", not made yet")
    if free < _LEAST_FREE:
        return Finding(
            name=name,
            status="failed",
            detail=told,
            cause="the disk is nearly full",
            fix=f"make room, or set {setting} to another folder",
        )
    return Finding(name=name, status="ok", detail=told)


Sections = dict[str, tuple[Finding, ...]]
"""Findings by section, in display order."""

_WITHIN_S: Final = 20.0


async def look_at_everything(settings: Settings, *, within_s: float = _WITHIN_S) -> Sections:
    """Run all checks concurrently; a check that times out becomes a finding."""
    checks: dict[str, Iterator[Finding] | AsyncIterator[Finding]] = {
        "keys": look_at_keys(settings.models),
        "models": look_at_models(settings.models),
        "backends": look_at_backends(settings.sandbox),
        "services": look_at_services(settings),
        "extras": look_at_extras(),
        "toolchains": look_at_toolchains(settings.sandbox.search_path),
        "folders": look_at_folders(settings),
    }
    found: dict[str, list[Finding]] = {name: [] for name in checks}

    async def look(name: str) -> None:
        check, findings = checks[name], found[name]
        try:
            with anyio.fail_after(within_s):
                if isinstance(check, AsyncIterator):
                    async for finding in check:
                        findings.append(finding)
                else:
                    findings += await to_thread.run_sync(list, check, abandon_on_cancel=True)
        except TimeoutError:
            told = f"no answer in {within_s:g} s"
            findings.append(Finding(name=name, status="timed_out", detail=told))
        except AssayError as error:
            findings.append(Finding(name=name, status="failed", detail=str(error), fix=error.hint))

    async with anyio.create_task_group() as tasks:
        for name in checks:
            tasks.start_soon(look, name)
    return {name: tuple(findings) for name, findings in found.items()}
