"""Settings of an executor, and of those who use one."""

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
"""Names that other servers of this kind know; ours, such as `ASSAY_EXECUTOR__CERT`, win."""

Port = Annotated[int, Field(ge=0, le=65535)]
Host = Annotated[str, Field(min_length=1)]


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or "/" in text or not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the last port
        raise ValueError("an address is needed, as in executor.example.org:50051")
    return text


ExecutorAddress = Annotated[str, AfterValidator(_host_and_port)]


class ExecutorSettings(Section):
    """How an executor is reached, by whom, and how much of it they get."""

    host: Host = "127.0.0.1"
    """Where to listen. Anything but this machine needs TLS, and tokens or client certificates."""
    port: Port = DEFAULT_PORT
    secure: bool = False
    """Whether to refuse to start without a certificate."""
    cert: Path | None = None
    """The server's certificate, PEM; with those in between, if there are any."""
    key: Path | None = None
    client_ca: Path | None = None
    """Who signs the certificates of clients; without a certificate from there, nobody gets in."""
    token_file: Path | None = None
    """Digests of tokens, from `assay executor token`; without a token, nobody gets in."""
    audit_file: Path | None = None
    """Unset: `executor/audit.jsonl` in `state_dir`."""
    metrics_host: Host = "127.0.0.1"
    metrics_port: Port = 50052
    """For Prometheus; 0 for none."""
    otlp_endpoint: HttpUrl | None = None
    """Where traces go, over OTLP and HTTP; unset: nowhere."""
    reflection: bool = True
    """Whether to tell clients which methods there are."""
    executions: Positive | None = None
    """At once, of all clients; unset: `sandbox.max_concurrent`."""
    waiting: Positive = 1024
    """Executions in the queue, of all clients; what comes on top is turned away."""
    client_executions: Positive | None = None
    """At once, of one client; more of them wait. Unset: three quarters of `executions`."""
    client_sandboxes: Positive = 256
    client_per_minute: Positive = 60_000
    max_wall_s: Seconds = 3600.0
    """The largest limits that a client may ask for; above, the request is refused."""
    max_cpu_s: Seconds = 14_400.0
    max_memory_mb: Positive = 16_384
    max_processes: Positive = 4096
    max_disk_mb: Positive = 16_384
    max_open_files: Positive = 65_536
    max_output_bytes: Positive = 64 << 20
    allow_modules: StrList = ()
    """The only Python modules that programs may import, with all that is in them; empty: all. A
    policy on what is written, not isolation."""
    deny_modules: StrList = ()
    """Python modules that programs may not import."""
    lease_s: Seconds = 60.0
    """How long a sandbox stays open that nobody asks for."""
    linger_s: Seconds = 60.0
    """How long a result can be had again after the connection broke."""
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long executions may go on after the order to end."""


class RemoteSettings(Section):
    """Which executors run programs for the backend `remote`, and how they are reached."""

    addresses: Annotated[tuple[ExecutorAddress, ...], WithCommas] = ()
    """One or several, `executor.example.org:50051`; sandboxes are spread over them."""
    ca: Path | None = None
    """Who signed the certificates of the executors. Unset: plain text, on this machine only."""
    cert: Path | None = None
    """Our own certificate, where executors ask for one."""
    key: Path | None = None
    token_file: Path | None = None
    """A file with our token, for us alone."""
    server_name: str = ""
    """The name in the executors' certificates, if they are reached by another."""
    connect_s: Seconds = 10.0
    patience_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """How long to ask again when an executor has too much to do."""
    cache: bool = False
    """Whether to keep results of programs that ran first in their sandbox, for when the same
    program is to run again with the same files. Only for programs that depend on nothing else."""
    cache_entries: Positive = 1024
