"""E2B backend: every sandbox is a separate virtual machine.

It labels its sandboxes at the service, so that Assay finds those whose owner has exited.
"""

import asyncio
import importlib
import os
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from assay.contracts.errors import UsageError, require
from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox
from assay.sandbox.e2b.sandbox import E2BSandbox
from assay.sandbox.e2b.vm import (
    KEYS,
    Machine,
    address_of,
    connection_to,
    explain,
    open_machine,
    unreachable,
)
from assay.sandbox.layer_copy import fill_from_layer
from assay.sandbox.native.host.registry import ProcessMark, mark
from assay.settings.sections import E2BSettings

if TYPE_CHECKING:
    from e2b import SandboxInfo


_LABEL: Final = "assay"
_HOST, _PID, _STARTED, _SINCE = "assay_host", "assay_pid", "assay_started", "assay_since"
_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One sandbox at the service that an Assay process opened."""

    id: str
    host: str
    owner: ProcessMark
    since: float
    """Seconds since the epoch."""

    @property
    def here(self) -> bool:
        return self.host == _this_host()

    @property
    def orphaned(self) -> bool:
        """Whether its owner ran on this machine and has exited; False for other machines."""
        return self.here and not self.owner.alive

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.since)


def labels() -> dict[str, str]:
    """Return the labels that identify sandboxes of this process."""
    owner = mark(os.getpid())
    return {
        _LABEL: "sandbox",
        _HOST: _this_host(),
        _PID: str(owner.pid),
        _STARTED: str(owner.started),
        _SINCE: f"{time.time():.0f}",
    }


def _this_host() -> str:
    """Identify this boot of this machine: pids of an earlier boot mean nothing."""
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot[:8]}"


async def find_leftovers(settings: E2BSettings) -> list[Leftover]:
    """Return all sandboxes that Assay has opened with this key, oldest first.

    Raises:
        UsageError: If the service rejects the key.
        SandboxUnavailableError: If the service cannot be reached.
    """
    from e2b import AsyncSandbox, SandboxQuery

    found: list[Leftover] = []
    try:
        pages = AsyncSandbox.list(
            query=SandboxQuery(metadata={_LABEL: "sandbox"}), limit=_PAGE, **connection_to(settings)
        )
        while pages.has_next:
            found.extend(_leftover(info) for info in await pages.next_items())
    except Exception as error:
        raise explain(error, dispatch="never_started", address=address_of(settings)) from error
    return sorted(found, key=lambda one: one.since)


def _leftover(info: "SandboxInfo") -> Leftover:
    told = info.metadata or {}
    return Leftover(
        id=info.sandbox_id,
        host=told.get(_HOST, "?"),
        owner=ProcessMark(pid=_number(told.get(_PID)), started=_number(told.get(_STARTED))),
        since=float(_number(told.get(_SINCE)) or info.started_at.timestamp()),
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


async def end_leftover(settings: E2BSettings, leftover: Leftover) -> None:
    """End one of them; one that has already ended is not an error.

    Raises:
        SandboxUnavailableError: If the service cannot be reached.
    """
    from e2b import AsyncSandbox

    try:
        await AsyncSandbox.kill(leftover.id, **connection_to(settings))
    except Exception as error:
        raise explain(error, dispatch="never_started", address=address_of(settings)) from error


_PROBE_S: Final = 5.0
_RENEWALS: Final = 3
"""How often Assay renews a machine's lifetime before it would end."""


class E2BBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    name = "e2b"
    isolation = Isolation.MACHINE
    branches = False
    """The service cannot copy running interpreters."""

    def __init__(self, settings: E2BSettings) -> None:
        self._settings = settings
        self._machines: set[Machine] = set()

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        machine = await open_machine(self._settings, equipment, labels())
        self._machines.add(machine)
        sandbox = E2BSandbox(machine, limits, layer=equipment.layer)
        try:
            await fill_from_layer(sandbox, equipment.layer)
            yield sandbox
        finally:
            self._machines.discard(machine)
            with anyio.CancelScope(shield=True):
                await sandbox.close()

    async def keep_alive(self) -> None:
        """Renew the lifetime of all open machines for as long as the backend is in use."""
        while True:
            await anyio.sleep(self._settings.timeout_s / _RENEWALS)
            for machine in tuple(self._machines):
                await machine.live_on()


@asynccontextmanager
async def open_e2b(settings: E2BSettings) -> AsyncGenerator[E2BBackend]:
    """Check that the service answers and accepts the key, and open sandboxes there.

    Raises:
        MissingExtraError: If the SDK is not installed.
        UsageError: If there is no key, or the service rejects it.
        SandboxUnavailableError: If the service does not answer.
    """
    check_sdk()
    if not settings.api_key:
        raise UsageError("the e2b backend needs a key", hint=f"set E2B_API_KEY; see {KEYS}")
    await _probe(settings)
    backend = E2BBackend(settings)
    # A task and no group: a group would wrap the errors of the backend's callers.
    renewing = asyncio.create_task(backend.keep_alive())
    try:
        yield backend
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])


def check_sdk() -> None:
    """Check that the extra is installed.

    Raises:
        MissingExtraError: If it is not.
    """
    with require("the e2b backend", extra="e2b"):
        importlib.import_module("e2b_code_interpreter")


async def _probe(settings: E2BSettings) -> None:
    """Send a small request: on its own, the SDK waits long before it reports a failure."""
    from e2b import AsyncSandbox

    words: dict[str, Any] = connection_to(settings) | {"request_timeout": _PROBE_S, "retries": 0}
    try:
        with anyio.fail_after(_PROBE_S):
            await AsyncSandbox.list(limit=1, **words).next_items()
    except TimeoutError as error:
        raise unreachable(address_of(settings)) from error
    except Exception as error:
        raise explain(error, dispatch="never_started", address=address_of(settings)) from error
