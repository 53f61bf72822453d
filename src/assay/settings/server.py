"""Settings of `assay serve`: where it listens, what it keeps, who gets how much."""

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from assay.settings.types import HttpUrl, Positive, Seconds, Section, StrList, Usd


def _database_url(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("a PostgreSQL URL is needed, as in postgresql://user@host/name")
    return url


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]


class QuotaSettings(Section):
    """What each key may use, where the key itself does not say otherwise; unset is no cap."""

    requests_per_minute: Positive = 600
    runs: Positive = 4
    """Unfinished at once."""
    tokens_per_day: Positive | None = None
    """Read and written, together; days are those of UTC."""
    usd_per_day: Usd | None = None


class ServeSettings(Section):
    """How `assay serve` is reached, and how much of this machine it takes."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Where to listen. Anything but this machine needs keys."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    names: StrList = ()
    """Names it is reached by, besides addresses in numbers: `assay.example.org`."""
    origins: StrList = ()
    """Foreign web pages that may call it: `https://notes.example.org`. None, unless named."""
    require_keys: bool = False
    """Whether a key is needed although there is none yet."""
    api_key: SecretStr | None = Field(default=None, repr=False)
    """A key that is always an admin's, from `API_KEY`. Not for the settings file."""
    database: DatabaseUrl | None = None
    """A PostgreSQL server; unset: `serve.sqlite` in `state_dir`."""
    quota: QuotaSettings = Field(default_factory=QuotaSettings)
    models: StrList = ()
    """Models that may be asked for, by name; empty: `models.default` and every provider's."""
    conversations: Positive = 256
    """Open at once; the one unused for longest is closed for another, and opened again on need."""
    idle_s: Seconds = 900.0
    """A conversation that nobody used for so long is closed; its state is rebuilt on need."""
    runs: Positive = 2
    """Worked on at once, of all users; more wait their turn."""
    body_bytes: Positive = 16 << 20
    """Of a request, other than the upload of a file."""
    upload_bytes: Positive = 64 << 20
    """Of one file."""
    patience_s: Seconds = 30.0
    """How long a client may take to send a piece of its request, or to take in a piece of ours."""
    body_s: Seconds = 300.0
    """How long a client may take to send a whole request."""
    connections: Positive = 1024
    """Open at once."""
    connections_per_address: Positive = 256
    """Of one address; raise it behind a proxy, which has one address for all its clients."""
    drain_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20.0
    """How long turns may go on after the order to end; runs are taken up after the restart."""
    otlp_endpoint: HttpUrl | None = None
    """Where traces go, over OTLP and HTTP; unset: nowhere."""
    trace_content: bool = False
    """Whether traces hold what was said and run, besides names and numbers."""
