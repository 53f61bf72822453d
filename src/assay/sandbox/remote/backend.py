"""Remote backend: distributes sandboxes over several executors; each stays on its executor."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio

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
    from assay.sandbox.remote.grpc_transport import Access, GrpcCaller, open_channel, prepare_access
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
        self, stations: tuple[Endpoint, ...], isolation: Isolation, settings: RemoteSettings
    ) -> None:
        self.isolation = isolation
        self._stations = stations
        self._retry_timeout_s = settings.retry_timeout_s
        self._cache = ResultCache(settings.cache_entries) if settings.cache else None

    @property
    def trouble(self) -> str:
        """See `assay.contracts.ports.Watched`; at most some seconds old."""
        if by_load(self._stations, self.isolation):
            return ""
        asked = ", ".join(station.caller.address for station in self._stations)
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
        candidates = by_load(self._stations, self.isolation) or await self._look_again()
        trouble: SandboxUnavailableError | None = None
        for station in candidates:
            # Without an alternative, a busy executor gets more time.
            patient = station is candidates[-1]
            opening = self._opened(station, limits, equipment, patient=patient)
            try:
                return await stack.enter_async_context(opening)
            except (UnreachableError, BrokenOffError) as lost:
                station.serving = False
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
        troubles = await meet_all(self._stations, self.isolation)
        if (found := by_load(self._stations, self.isolation)) or not troubles:
            return found
        raise troubles[-1]

    @asynccontextmanager
    async def _opened(
        self, station: Endpoint, limits: Limits, equipment: SandboxSpec, *, patient: bool
    ) -> AsyncGenerator[RemoteSandbox]:
        sandbox = self._build(station, limits)
        # Counted before it opens; otherwise concurrent openings would all go to the same executor.
        station.sandboxes[sandbox.id] = sandbox
        try:
            if patient:
                await sandbox.open(equipment)
            else:
                await station.unless_silent(partial(sandbox.open, equipment))
            yield sandbox
        finally:
            # Also after a failed opening: the sandbox may exist on the remote side.
            with anyio.CancelScope(shield=True):
                await station.close(sandbox)
            del station.sandboxes[sandbox.id]

    def _build(self, station: Endpoint, limits: Limits) -> RemoteSandbox:
        if self._cache is None:
            return RemoteSandbox(
                station.caller, LABEL, limits, retry_timeout_s=self._retry_timeout_s
            )
        return CachingSandbox(
            station.caller,
            limits,
            self._cache,
            digest=station.digest,
            retry_timeout_s=self._retry_timeout_s,
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
    failure: Exception | None = None
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        try:
            stations = tuple(
                [
                    await _open_station(stack, address, access, settings.connect_timeout_s)
                    for address in settings.addresses
                ]
            )
            isolation = await _meet_all(stations, least)
            for station in stations:
                tasks.start_soon(station.look_after)
            yield RemoteBackend(stations, isolation, settings)
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _open_station(
    stack: AsyncExitStack, address: str, access: Access, connect_timeout_s: float
) -> Endpoint:
    channel = open_channel(address, access)
    stack.push_async_callback(channel.close)
    caller = GrpcCaller(channel, address, access, connect_timeout_s=connect_timeout_s)
    return Endpoint(caller, channel)


async def _meet_all(stations: tuple[Endpoint, ...], least: Isolation) -> Isolation:
    """Return the isolation that every suitable executor provides, and no less than requested."""
    troubles = await meet_all(stations, least)
    found = [station.isolation for station in stations if station.isolation is not None]
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
