"""Executor server: a sandbox backend behind gRPC, with authentication, quotas, logs and metrics.

The gRPC health protocol reports whether the executor accepts requests.
"""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, cast

import anyio
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from assay.asyncx.owned_context import open_task_group
from assay.auth.credentials import Credentials, load_credentials
from assay.contracts.errors import UsageError, require
from assay.contracts.execution import Limits
from assay.contracts.ports import SandboxBackend
from assay.sandbox.rpc.messages import executor_pb2
from assay.sandbox.rpc.messages.codec import CHUNK_BYTES, MAX_MESSAGE_BYTES
from assay.sandbox.rpc.messages.failures import SERVICE
from assay.sandbox.rpc.sandbox_service import SandboxServiceConfig
from assay.screening.scan import ModuleRules
from assay.settings.executor import ExecutorSettings

with require("an executor", extra="executor"):
    import grpc.aio
    from grpc_reflection.v1alpha import reflection

    from assay.executor.admission import Admission, Quotas, share_of
    from assay.executor.observer import AuditLog, Observer
    from assay.executor.servicer import ExecutorServicer
    from assay.telemetry.tracing import open_tracer

_EXPORT_S: Final = 3.0
"""Maximum delay of the shutdown by an unreachable collector, including all retries."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + CHUNK_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + CHUNK_BYTES),
    # Two executors must not share a port by mistake.
    ("grpc.so_reuseport", 0),
    # Allow clients to send keep-alive pings every few seconds, also without calls.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Detect a client that vanished without closing its connection within three seconds.
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    # Timeout for answers to pings; without it, gRPC waits for a minute.
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Executor:
    """A running executor."""

    def __init__(
        self, server: grpc.aio.Server, servicer: ExecutorServicer, admission: Admission
    ) -> None:
        self._server = server
        # The type stubs of this library lack its asynchronous half.
        self._health = cast("Any", health).aio.HealthServicer()
        cast("Any", health_pb2_grpc).add_HealthServicer_to_server(self._health, server)
        self._servicer = servicer
        self._admission = admission
        self.port = 0
        self.metrics_port = 0
        """0 without metrics."""
        self.description = ""
        """Summary of the authentication, for people."""

    async def start(self, settings: ExecutorSettings, credentials: Credentials) -> None:
        """Start to listen.

        Raises:
            UsageError: If the address is not available.
        """
        self.port = _bind(self._server, settings, credentials)
        self.description = credentials.describe()
        # The empty name, the whole server, always exists.
        for name in (SERVICE, HEALTH_SERVICE):
            await self._health.set(name, _SERVING)
        await self._server.start()

    def note_handshake(self, why: str) -> None:
        """Log a failed TLS handshake; callable from any thread."""
        self._admission.observer.note_rejected_call("stranger", "handshake", why, peer="unknown")

    async def drain(self, within_s: float) -> bool:
        """Reject new requests, and wait for running ones; return whether all of them ended."""
        # Watching clients see NOT_SERVING.
        await self._health.enter_graceful_shutdown()
        self._admission.drain()
        with anyio.move_on_after(within_s) as grace:
            await self._admission.wait_until_idle()
        return not grace.cancelled_caught

    async def stop(self) -> None:
        """End the remaining executions, answer waiting clients, and close all connections."""
        await self._servicer.close()
        await self._server.stop(grace=1.0)


@asynccontextmanager
async def open_executor(
    backend: SandboxBackend, settings: ExecutorSettings, *, audit_file: Path, executions: int
) -> AsyncGenerator[Executor]:
    """Serve a backend; leaving the context ends all executions.

    `executions` is the maximum number of parallel executions, of all clients.

    Raises:
        UsageError: If the settings are not safe, or the address is not available.
    """
    credentials = load_credentials(settings)
    with ExitStack() as stack:
        audit = stack.enter_context(closing(AuditLog(audit_file)))
        observer = Observer(audit.write)
        admission = Admission(_quotas(settings, executions), observer)
        tracer = stack.enter_context(
            open_tracer(
                settings.otlp_endpoint, "assay-executor", extra="executor", timeout_s=_EXPORT_S
            )
        )
        config = SandboxServiceConfig(
            lease_s=settings.lease_s,
            result_ttl_s=settings.result_ttl_s,
            digest=surroundings(backend),
        )
        async with open_task_group() as tasks:
            servicer = ExecutorServicer(backend, tasks, config, admission, credentials, tracer)
            server = grpc.aio.server(options=_OPTIONS)
            server.add_generic_rpc_handlers((servicer.rpc_handlers(),))
            if settings.reflection:
                names = (SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
                reflection.enable_server_reflection(names, server)
            executor = Executor(server, servicer, admission)
            try:
                await executor.start(settings, credentials)
                if settings.metrics_port:
                    executor.metrics_port = stack.enter_context(
                        observer.served_metrics(settings.metrics_host, settings.metrics_port)
                    )
                tasks.start_soon(servicer.sweep)
                yield executor
            finally:
                with anyio.CancelScope(shield=True):
                    await executor.stop()


def _quotas(settings: ExecutorSettings, executions: int) -> Quotas:
    return Quotas(
        executions=executions,
        waiting=settings.max_queued,
        client_executions=settings.client_executions or share_of(executions),
        client_sandboxes=settings.client_sandboxes,
        client_per_minute=settings.client_per_minute,
        maxima=Limits(
            **{limit.name: getattr(settings, f"max_{limit.name}") for limit in fields(Limits)}
        ),
        modules=ModuleRules(allow=settings.allow_modules, deny=settings.deny_modules),
    )


def _bind(server: grpc.aio.Server, settings: ExecutorSettings, credentials: Credentials) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.port}"
    try:
        if credentials.server is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials.server)
    except RuntimeError as error:
        raise UsageError(
            f"cannot listen on {address}",
            hint="is another executor running there? set executor.port",
        ) from error


def surroundings(backend: SandboxBackend) -> str:
    """Return a digest of everything known that affects how programs run on this machine."""
    installed = sorted(
        f"{found.name}=={found.version}" for found in importlib.metadata.distributions()
    )
    facts = {
        "backend": backend.name,
        "isolation": backend.isolation.value,
        "machine": platform.machine(),
        "system": _system(),
        "python": platform.python_version(),
        "installed": installed,
        "protocol": executor_pb2.DESCRIPTOR.package,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _system() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


_SERVING: Final = cast("Any", health_pb2).HealthCheckResponse.SERVING
HEALTH_SERVICE: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
