"""E2B backend: every sandbox is a separate virtual machine."""

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from assay.contracts.errors import MissingExtraError, UsageError
from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox
from assay.sandbox.e2b.cleanup import labels
from assay.sandbox.e2b.errors import KEYS, explain, unreachable
from assay.sandbox.e2b.sandbox import E2BSandbox
from assay.sandbox.e2b.vm import E2BOptions, Machine, open_machine

_PROBE_S: Final = 5.0
_RENEWALS: Final = 3
"""How often Assay renews a machine's lifetime before it would end."""


class E2BBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    name = "e2b"
    isolation = Isolation.MACHINE
    branches = False
    """The service cannot copy running interpreters."""

    def __init__(self, options: E2BOptions) -> None:
        self._options = options
        self._machines: set[Machine] = set()

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        machine = await open_machine(self._options, equipment, labels())
        self._machines.add(machine)
        sandbox = E2BSandbox(machine, limits)
        try:
            yield sandbox
        finally:
            self._machines.discard(machine)
            with anyio.CancelScope(shield=True):
                await sandbox.close()

    async def keep_alive(self) -> None:
        """Renew the lifetime of all open machines for as long as the backend is in use."""
        while True:
            await anyio.sleep(self._options.timeout_s / _RENEWALS)
            for machine in tuple(self._machines):
                await machine.live_on()


@asynccontextmanager
async def open_e2b(options: E2BOptions) -> AsyncGenerator[E2BBackend]:
    """Check that the service answers and accepts the key, and open sandboxes there.

    Raises:
        MissingExtraError: If the SDK is not installed.
        UsageError: If there is no key, or the service rejects it.
        SandboxUnavailableError: If the service does not answer.
    """
    check_sdk()
    if not options.api_key:
        raise UsageError("the e2b backend needs a key", hint=f"set E2B_API_KEY; see {KEYS}")
    await _probe(options)
    backend = E2BBackend(options)
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
    try:
        importlib.import_module("e2b_code_interpreter")
    except ImportError as error:
        raise MissingExtraError("the e2b backend", extra="e2b") from error


async def _probe(options: E2BOptions) -> None:
    """Send a small request: on its own, the SDK waits long before it reports a failure."""
    from e2b import AsyncSandbox

    words: dict[str, Any] = options.connection() | {"request_timeout": _PROBE_S, "retries": 0}
    try:
        with anyio.fail_after(_PROBE_S):
            await AsyncSandbox.list(limit=1, **words).next_items()
    except TimeoutError as error:
        raise unreachable(options.address) from error
    except Exception as error:
        raise explain(error, dispatch="never_started", address=options.address) from error
