"""Settings of `assay serve`: address, storage, models and quotas."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from assay.settings.types import HttpUrl, Positive, Seconds, Section, StrList, Usd


def _database_url(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("a PostgreSQL URL is needed, as in postgresql://user@host/name")
    return url


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]


class QuotaSettings(Section):
    """Default quotas of each API key; unset is no cap."""

    requests_per_minute: Positive = 600
    runs: Positive = 4
    """Maximum number of unfinished runs."""
    tokens_per_day: Positive | None = None
    """Input and output tokens together, per UTC day."""
    usd_per_day: Usd | None = None


class ServeSettings(Section):
    """Address, access and resource limits of `assay serve`."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on. Other than loopback, it requires API keys."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    names: StrList = ()
    """Host names of the service, in addition to IP addresses: `assay.example.org`."""
    origins: StrList = ()
    """Origins of foreign web pages that may call it: `https://notes.example.org`. Default: none."""
    require_keys: bool = False
    """Whether requests need a key even before the first one exists."""
    api_key: SecretStr | None = Field(default=None, repr=False)
    """Key with admin rights, from `API_KEY`. Not allowed in the settings file."""
    database: DatabaseUrl | None = None
    """URL of a PostgreSQL server; unset: `serve.sqlite` in `state_dir`."""
    quota: QuotaSettings = Field(default_factory=QuotaSettings)
    models: StrList = ()
    """Models that clients may request; empty: `models.default` and every provider's."""
    conversations: Positive = 256
    """Maximum number of open sessions; above it, the least recently used is closed."""
    idle_s: Seconds = 900.0
    """Idle time after which a session is closed; its state is rebuilt on demand."""
    runs: Positive = 2
    """Maximum number of parallel runs, of all users; more of them wait."""
    body_bytes: Positive = 16 << 20
    """Maximum size of a request, except file uploads."""
    upload_bytes: Positive = 64 << 20
    """Maximum size of a file."""
    patience_s: Seconds = 30.0
    """Timeout for a client to send a piece of its request, or to read a piece of the response."""
    body_s: Seconds = 300.0
    """Timeout for a client to send a whole request."""
    connections: Positive = 1024
    """Maximum number of open connections."""
    connections_per_address: Positive = 256
    """Per address; raise it behind a proxy, which has one address for all its clients."""
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20.0
    """Grace period for turns after the signal to stop; runs resume after the restart."""
    otlp_endpoint: HttpUrl | None = None
    """OTLP endpoint over HTTP for traces; unset: no traces."""
    trace_content: bool = False
    """Whether traces contain messages, code and output, in addition to names and numbers."""
