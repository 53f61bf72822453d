"""Settings of the executor server, and of its clients."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from assay.settings.types import HttpUrl, Positive, Seconds, Section, StrList, WithCommas

DEFAULT_PORT: Final = 50051
EXECUTOR_VARIABLES: Final = {
    "GRPC_HOST": "host",
    "GRPC_PORT": "port",
    "GRPC_USE_SECURE": "secure",
    "GRPC_CERT_FILE": "cert",
    "GRPC_KEY_FILE": "key",
}
"""Common names from other executors; Assay's own names, such as `ASSAY_EXECUTOR__CERT`, win."""

Port = Annotated[int, Field(ge=0, le=65535)]
Host = Annotated[str, Field(min_length=1)]


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or "/" in text or not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the last port
        raise ValueError("an address is needed, as in executor.example.org:50051")
    return text


ExecutorAddress = Annotated[str, AfterValidator(_host_and_port)]


class ExecutorSettings(Section):
    """Address, authentication and quotas of an executor."""

    host: Host = "127.0.0.1"
    """Other addresses than loopback require TLS, and tokens or client certificates."""
    port: Port = DEFAULT_PORT
    secure: bool = False
    """Whether to refuse to start without a certificate."""
    cert: Path | None = None
    """The server's certificate as PEM, with intermediate certificates."""
    key: Path | None = None
    client_ca: Path | None = None
    """Authority of client certificates; if set, clients need a certificate from it."""
    token_file: Path | None = None
    """File of token digests, from `assay executor token`; if set, clients need a token."""
    audit_file: Path | None = None
    """Unset: `executor/audit.jsonl` in `state_dir`."""
    metrics_host: Host = "127.0.0.1"
    metrics_port: Port = 50052
    """Port for Prometheus; 0 disables it."""
    otlp_endpoint: HttpUrl | None = None
    """OTLP endpoint over HTTP for traces; unset: no traces."""
    reflection: bool = True
    """Whether to enable gRPC server reflection."""
    executions: Positive | None = None
    """Parallel executions, of all clients; unset: `sandbox.max_concurrent`."""
    max_queued: Positive = 1024
    """Executions in the queue, of all clients; the executor rejects more."""
    client_executions: Positive | None = None
    """Parallel executions of one client; more wait. Unset: three quarters of `executions`."""
    client_sandboxes: Positive = 256
    client_per_minute: Positive = 60_000
    max_wall_s: Seconds = 3600.0
    """Largest limits that a client may request; the executor rejects larger ones."""
    max_cpu_s: Seconds = 14_400.0
    max_memory_mb: Positive = 16_384
    max_processes: Positive = 4096
    max_disk_mb: Positive = 16_384
    max_open_files: Positive = 65_536
    max_output_bytes: Positive = 64 << 20
    allow_modules: StrList = ()
    """The only Python modules that programs may import, including submodules; empty: all. This is a
    policy for source code, not isolation."""
    deny_modules: StrList = ()
    """Python modules that programs may not import."""
    lease_s: Seconds = 60.0
    """Lifetime of a sandbox without requests."""
    result_ttl_s: Seconds = 60.0
    """How long a client can fetch a result after its connection broke."""
    shutdown_grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Grace period for executions after the signal to stop."""


class RemoteSettings(Section):
    """Executors of the backend `remote`, and the connection to them."""

    addresses: Annotated[tuple[ExecutorAddress, ...], WithCommas] = ()
    """Executors such as `executor.example.org:50051`; sandboxes are distributed over them."""
    ca: Path | None = None
    """Authority of the executors' certificates. Unset: plain text, on this machine only."""
    cert: Path | None = None
    """Client certificate, if executors require one."""
    key: Path | None = None
    token_file: Path | None = None
    """File with the client token, which only its owner may access."""
    server_name: str = ""
    """Host name in the executors' certificates, if it differs from the address."""
    connect_timeout_s: Seconds = 10.0
    retry_timeout_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long to retry when an executor is overloaded."""
    cache: bool = False
    """Whether to cache results of the first program in a sandbox, for the same program with the
    same files. Only for programs that depend on nothing else."""
    cache_entries: Positive = 1024
