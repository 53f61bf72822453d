"""Remote backend: distributes sandboxes over several executors; each stays on its executor."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import (
    IsolationUnavailableError,
    SandboxUnavailableError,
    require,
)
from assay.contracts.execution import DEFAULT_SPEC, Isolation, Limits, SandboxSpec
from assay.contracts.ports import Sandbox
from assay.settings.executor import RemoteSettings

with require("the backend 'remote'", extra="executor"):
    from assay.sandbox.remote.endpoints import Endpoint, by_load, meet_all
    from assay.sandbox.remote.grpc_transport import GrpcTransport, prepare_access
    from assay.sandbox.remote.sandbox import LABEL, CachingSandbox, ResultCache
    from assay.sandbox.rpc.client_sandbox import (
        BrokenOffError,
        RemoteSandbox,
        UnreachableError,
        retry_while_busy,
    )
    from assay.sandbox.rpc.messages.failures import ExecutorBusyError


class RemoteBackend:
    """See `assay.contracts.ports.SandboxBackend`."""

    name = LABEL.backend

    def __init__(
        self, endpoints: tuple[Endpoint, ...], isolation: Isolation, settings: RemoteSettings
    ) -> None:
        self.isolation = isolation
        self._endpoints = endpoints
        self._retry_timeout_s = settings.retry_timeout_s
        self._cache = ResultCache(settings.cache_entries) if settings.cache else None

    @property
    def trouble(self) -> str:
        """See `assay.contracts.ports.Watched`; at most some seconds old."""
        if by_load(self._endpoints, self.isolation):
            return ""
        asked = ", ".join(endpoint.transport.address for endpoint in self._endpoints)
        return f"no executor serves: {asked}"

    @asynccontextmanager
    async def open_sandbox(
        self, limits: Limits, equipment: SandboxSpec = DEFAULT_SPEC
    ) -> AsyncGenerator[Sandbox]:
        async with AsyncExitStack() as stack:
            # Wait while all executors are busy.
            yield await retry_while_busy(
                self._retry_timeout_s, partial(self._open_somewhere, stack, limits, equipment)
            )

    async def _open_somewhere(
        self, stack: AsyncExitStack, limits: Limits, equipment: SandboxSpec
    ) -> RemoteSandbox:
        """Open a sandbox on the first executor that accepts it."""
        candidates = by_load(self._endpoints, self.isolation) or await self._look_again()
        trouble: SandboxUnavailableError | None = None
        for endpoint in candidates:
            # Without an alternative, a busy executor gets more time.
            patient = endpoint is candidates[-1]
            opening = self._opened(endpoint, limits, equipment, patient=patient)
            try:
                return await stack.enter_async_context(opening)
            except (UnreachableError, BrokenOffError) as lost:
                endpoint.serving = False
                # Report the busy executor rather than the failed one: it will have room again.
                trouble = trouble if isinstance(trouble, ExecutorBusyError) else lost
            except ExecutorBusyError as busy:
                trouble = busy
        if trouble is None or isinstance(trouble, BrokenOffError):
            raise UnreachableError(
                str(trouble or "no executor can be reached"), hint=trouble.hint if trouble else ""
            )
        raise trouble

    async def _look_again(self) -> list[Endpoint]:
        """Ask the unreachable executors again, because no other one is left."""
        troubles = await meet_all(self._endpoints, self.isolation)
        if (found := by_load(self._endpoints, self.isolation)) or not troubles:
            return found
        raise troubles[-1]

    @asynccontextmanager
    async def _opened(
        self, endpoint: Endpoint, limits: Limits, equipment: SandboxSpec, *, patient: bool
    ) -> AsyncGenerator[RemoteSandbox]:
        sandbox = self._build(endpoint, limits)
        # Counted before it opens; otherwise concurrent openings would all go to the same executor.
        endpoint.sandboxes[sandbox.id] = sandbox
        try:
            if patient:
                await sandbox.open(equipment)
            else:
                await endpoint.unless_silent(partial(sandbox.open, equipment))
            yield sandbox
        finally:
            # Also after a failed opening: the sandbox may exist on the remote side.
            with anyio.CancelScope(shield=True):
                await endpoint.close(sandbox)
            del endpoint.sandboxes[sandbox.id]

    def _build(self, endpoint: Endpoint, limits: Limits) -> RemoteSandbox:
        if self._cache is None:
            return RemoteSandbox(
                endpoint.transport,
                LABEL,
                limits,
                retry_timeout_s=self._retry_timeout_s,
                sends_layers=endpoint.layers,
            )
        return CachingSandbox(
            endpoint.transport,
            limits,
            self._cache,
            digest=endpoint.digest,
            retry_timeout_s=self._retry_timeout_s,
            sends_layers=endpoint.layers,
        )


@asynccontextmanager
async def open_remote(settings: RemoteSettings, least: Isolation) -> AsyncGenerator[RemoteBackend]:
    """Use the configured executors; those that do not answer now may be used later.

    Raises:
        UsageError: If the settings are wrong, or would send a secret unprotected.
        SandboxUnavailableError: If no executor answers.
        IsolationUnavailableError: If no answering executor isolates as strongly as requested.
    """
    access = prepare_access(settings)
    async with AsyncExitStack() as stack, open_task_group() as tasks:
        endpoints = tuple(
            Endpoint(GrpcTransport(address, access)) for address in settings.addresses
        )
        for endpoint in endpoints:
            stack.push_async_callback(endpoint.transport.channel.close)
        isolation = await _meet_all(endpoints, least)
        for endpoint in endpoints:
            tasks.start_soon(endpoint.look_after)
        yield RemoteBackend(endpoints, isolation, settings)


async def _meet_all(endpoints: tuple[Endpoint, ...], least: Isolation) -> Isolation:
    """Return the isolation that every suitable executor provides, and no less than requested."""
    troubles = await meet_all(endpoints, least)
    found = [endpoint.isolation for endpoint in endpoints if endpoint.isolation is not None]
    if not found:
        raise troubles[0]
    enough = [isolation for isolation in found if isolation.satisfies(least)]
    if not enough:
        best = max(found, key=lambda isolation: isolation.rank)
        raise IsolationUnavailableError(
            f"the executors give the isolation {best.value!r}, not {least.value!r}",
            hint="ask for less with sandbox.isolation, or use others",
        )
    return min(enough, key=lambda isolation: isolation.rank)
