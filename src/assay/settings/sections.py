"""Settings by section: models, sessions, MCP, tools, screening, memory, sandboxes and server.

The sandbox sections are Docker and E2B. The server section has address, storage, models and quotas.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from assay.contracts.messages import ReasoningEffort
from assay.settings.types import HttpUrl, Packages, Positive, Seconds, Section, StrList, Usd

Approval = Literal["allow", "ask", "deny"]
"""Whether a model may call a tool: always, after the user's approval, or never."""

ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,23}$")]


class McpSettings(Section):
    """Settings of Assay's MCP servers."""

    allowed_hosts: StrList = ()
    """Host names of the servers, in addition to their own address: `tools.example.org:*`."""
    cors_origins: StrList = ()
    """Origins of web pages that may call the servers; by default none."""
    token_file: Path | None = None
    """Token hashes; unset: `mcp-tokens` in `state_dir`. If there are any, clients need a token."""
    idle_s: Seconds = 1800.0
    """Lifetime of a workspace without calls."""
    max_workspaces: Positive = 32
    timeout_s: Seconds = 300.0
    """For one run."""
    memory_mb: Positive = 1024
    disk_mb: Positive = 512
    processes: Positive = 128
    output_bytes: Positive = 1 << 18
    """Stored per stream of a run."""
    file_bytes: Positive = 4 << 20
    """Maximum size of a file in one call."""
    packages: Packages = ()
    """Python packages for programs."""
    network: StrList = ()
    """Hosts that programs may reach."""


class ForeignServerSettings(Section):
    """A foreign MCP server whose tools models may call: a local program or an address."""

    command: tuple[str, ...] = ()
    """A program and its arguments. It runs on this machine as you, outside of any sandbox."""
    url: HttpUrl | None = None
    env: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """Variables for the program, in addition to a few harmless ones such as PATH and HOME."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """Headers of every request to the address."""
    timeout_s: Seconds = 60.0
    """For one call, and for the start."""
    approval: Approval = "ask"
    """For all its tools that `tools.approval` does not name."""

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command or a url")
        if self.url and self.env:
            raise ValueError("env is for a command; an address has headers")
        if self.command and self.headers:
            raise ValueError("headers are for a url; a command has env")
        return self


class ToolSettings(Section):
    """Tools for models, in addition to the built-in ones."""

    approval: Mapping[str, Approval] = Field(default_factory=dict[str, Approval])
    """By tool name; overrides the tool's file or server."""
    mcp: Mapping[ServerName, ForeignServerSettings] = Field(
        default_factory=dict[ServerName, ForeignServerSettings]
    )
    """Foreign MCP servers, by a short name that prefixes their tools."""


class WorkspaceSettings(Section):
    """Files of a user's folder that no prompt and no sandbox receives."""

    secret_names: StrList = ()
    """Globs of names or paths that are withheld in addition to the known names of secrets."""


class ScreeningSettings(Section):
    """Screening: additions to its list, and exceptions."""

    deny_imports: StrList = ()
    deny_calls: StrList = ()
    allow: StrList = ()
    """Modules and calls that are allowed here."""


class MemorySettings(Section):
    """Storage and embeddings of the failure memory."""

    store: Literal["sqlite", "chroma"] = "sqlite"
    chroma_url: HttpUrl | None = None
    """Address of a Chroma server; unset: a folder beside the runs."""
    embedding_model: str = ""
    """Embedding model; empty: words are hashed locally. `local:FILE.gguf`, or `local:` and the name
    of a downloaded model, runs on this machine."""
    embedding_url: HttpUrl | None = None
    """An OpenAI-compatible endpoint; unset: `models.base_url`."""


MODELS_OF_FILES: Final = frozenset({"local", "scripted", "replay", "replay-lenient"})
"""Models that are loaded from files: an untrusted project must not select one."""


class BudgetSettings(Section):
    """Total caps of a run; unset is no cap."""

    usd: Usd | None = None
    tokens: Positive | None = None
    """Input and output tokens together."""
    calls: Positive | None = None


class PriceSettings(Section):
    """US dollars per million tokens of one model."""

    input_usd: Usd
    output_usd: Usd
    cached_input_usd: Usd | None = None
    """Unset: the same as other input."""
    cache_write_usd: Usd | None = None
    """For input that is written to the provider's cache; unset: the same as other input."""


class NamedModelSettings(Section):
    """Properties of one model. They win over the catalogue and over what its server reports."""

    context_tokens: Positive | None = None
    max_output_tokens: Positive | None = None
    reasoning_effort: ReasoningEffort | None = None
    """How much the model reasons before it answers; unset: the model's own default."""
    tool_calls: bool | None = None
    """Whether it makes native tool calls."""
    vision: bool | None = None
    """Whether it accepts images."""
    small: bool | None = None
    """Whether it gets the short prompts for small models."""
    price: PriceSettings | None = None


class NamedModels(Section):
    """The settings of single models."""

    named: Mapping[str, NamedModelSettings] = Field(default_factory=dict[str, NamedModelSettings])
    """By `PROVIDER:MODEL`; in the file, a table `[models."PROVIDER:MODEL"]`."""

    @model_validator(mode="before")
    @classmethod
    def _collect(cls, given: object) -> object:
        """Move the tables of single models, whose names have a colon, into one mapping."""
        if not isinstance(given, Mapping):
            return given
        fields = cast("Mapping[str, Any]", given)
        named = {name: table for name, table in fields.items() if ":" in name}
        if not named:
            return fields
        others = {name: value for name, value in fields.items() if name not in named}
        return {**others, "named": {**others.get("named", {}), **named}}

    @field_validator("named")
    @classmethod
    def _check(cls, named: Mapping[str, NamedModelSettings]) -> Mapping[str, NamedModelSettings]:
        for name in named:
            if name.partition(":")[0] in MODELS_OF_FILES or ":" not in name:
                raise ValueError(f"{name!r} is no model of a provider or server")
        return named


class ChatSettings(Section):
    """Defaults for chat sessions."""

    steps: Positive = 8
    """Cells and tool calls per turn, before the model must answer."""
    repairs: Positive = 3
    """Consecutive failed cells, before the model must explain the problem."""
    cell_timeout_s: Seconds = 120.0
    """For one cell."""
    memory_mb: Positive = 2048
    """For all variables of a session together."""
    disk_mb: Positive = 1024
    screening: Literal["off", "warn", "block"] = "warn"
    """Action on policy violations in generated code."""
    cells: Literal["auto", "calls", "blocks"] = "auto"
    """How a model sends code: as tool calls, or as blocks labeled `python` in its text."""
    figures: Literal["auto", "kitty", "iterm", "sixel", "file"] = "auto"
    """How the terminal shows images; `file` only prints their paths."""


class DockerSettings(Section):
    """Settings of the Docker backend."""

    socket: Annotated[str, Field(min_length=1)] = "/var/run/docker.sock"
    """Socket path, or an address as in DOCKER_HOST, which applies if this is unset."""
    base_image: Annotated[str, Field(pattern=r"^[\w./:@-]+$")] = "python:3.12-slim"
    """Base image of `assay-python`; it must contain Python 3.11 or newer."""
    packages: Packages = ()
    """Python packages to install in the image, in addition to the default ones."""
    runtime: Literal["", "runsc"] = ""
    """`runsc` is gVisor, the same as the backend `docker+runsc`."""
    warm_containers: Annotated[int, Field(ge=0, le=16)] = 1
    """Number of warm containers."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    """Number of processors for a container."""


def _absolute(path: PurePosixPath) -> PurePosixPath:
    if not path.is_absolute() or ".." in path.parts or not path.name:
        raise ValueError("an absolute path is needed")
    return path


class E2BSettings(Section):
    """Settings of the E2B backend."""

    api_key: SecretStr | None = Field(default=None, repr=False)
    """From `E2B_API_KEY` or the file of keys. Not allowed in the settings file."""
    template: Annotated[str, Field(min_length=1)] = "code-interpreter-v1"
    timeout_s: Annotated[float, Field(ge=30, le=86_400)] = 300.0
    """Maximum lifetime of a sandbox after Assay stops to renew it."""
    user: Annotated[str, Field(min_length=1)] = "user"
    """User account that runs programs."""
    workspace: Annotated[PurePosixPath, AfterValidator(_absolute)] = PurePosixPath("/app")
    domain: str = ""
    """Domain of a self-hosted service; unset: E2B's."""
    api_url: HttpUrl | None = None
    """Unset: derived from the domain."""
    sandbox_url: HttpUrl | None = None


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
    allowed_hosts: StrList = ()
    """Host names of the service, in addition to IP addresses: `assay.example.org`."""
    cors_origins: StrList = ()
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
    max_open_sessions: Positive = 256
    """Maximum number of open sessions; above it, the least recently used is closed."""
    idle_s: Seconds = 900.0
    """Idle time after which a session is closed; its state is rebuilt on demand."""
    max_concurrent_runs: Positive = 2
    """Maximum number of parallel runs, of all users; more of them wait."""
    body_bytes: Positive = 16 << 20
    """Maximum size of a request, except file uploads."""
    upload_bytes: Positive = 64 << 20
    """Maximum size of a file."""
    client_timeout_s: Seconds = 30.0
    """Timeout for a client to send a piece of its request, or to read a piece of the response."""
    body_s: Seconds = 300.0
    """Timeout for a client to send a whole request."""
    connections: Positive = 1024
    """Maximum number of open connections."""
    connections_per_address: Positive = 256
    """Per address; raise it behind a proxy, which has one address for all its clients."""
    shutdown_grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 20.0
    """Grace period for turns after the signal to stop; runs resume after the restart."""
    otlp_endpoint: HttpUrl | None = None
    """OTLP endpoint over HTTP for traces; unset: no traces."""
    trace_content: bool = False
    """Whether traces contain messages, code and output, in addition to names and numbers."""
