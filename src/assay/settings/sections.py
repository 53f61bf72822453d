"""Settings of what Assay serves to others, of tools, of what is remembered and warned of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from assay.settings.types import HttpUrl, Packages, Positive, Seconds, Section, StrList

Approval = Literal["allow", "ask", "deny"]
"""Whether a tool may be used: without asking, after asking a person, or not at all."""

ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,23}$")]


class McpSettings(Section):
    """What clients of the MCP servers may do."""

    hosts: StrList = ()
    """Names the servers are reached by, besides their own address: `tools.example.org:*`."""
    origins: StrList = ()
    """Web pages that may call them. None, unless named."""
    token_file: Path | None = None
    """Hashes of tokens; unset: `mcp-tokens` in `state_dir`. Where there are any, one is needed."""
    idle_s: Seconds = 1800.0
    """A workspace that nobody used for so long ends."""
    max_workspaces: Positive = 32
    timeout_s: Seconds = 300.0
    """For one run."""
    memory_mb: Positive = 1024
    disk_mb: Positive = 512
    processes: Positive = 128
    output_bytes: Positive = 1 << 18
    """Kept of each stream of a run."""
    file_bytes: Positive = 4 << 20
    """The largest file that can be read or written at once."""
    packages: Packages = ()
    """Python packages that programs find."""
    network: StrList = ()
    """Hosts that programs may reach."""


class ForeignServerSettings(Section):
    """An MCP server whose tools models may use: a program to start here, or an address."""

    command: tuple[str, ...] = ()
    """A program and its arguments. It runs on this machine as you, outside of any sandbox."""
    url: HttpUrl | None = None
    env: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """Variables for the program, besides a few harmless ones such as PATH and HOME."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr])
    """Sent with every request to the address."""
    timeout_s: Seconds = 60.0
    """For one call, and for the beginning."""
    approval: Approval = "ask"
    """For all its tools, where `tools.approval` does not name one."""

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
    """Which tools models may use besides those that come with Assay."""

    approval: Mapping[str, Approval] = Field(default_factory=dict[str, Approval])
    """By name of a tool; wins over what its file or its server says."""
    mcp: Mapping[ServerName, ForeignServerSettings] = Field(
        default_factory=dict[ServerName, ForeignServerSettings]
    )
    """Foreign MCP servers, by a short name that their tools begin with."""


class ScreeningSettings(Section):
    """What the screen names in code, besides its own list, and what it lets pass."""

    deny_imports: StrList = ()
    deny_calls: StrList = ()
    allow: StrList = ()
    """Names of either kind that are all right here."""


class MemorySettings(Section):
    """Where failures are kept, and how they are compared."""

    store: Literal["sqlite", "chroma"] = "sqlite"
    chroma_url: HttpUrl | None = None
    """A Chroma server; unset: a folder beside the runs."""
    embedding_model: str = ""
    """Asked for vectors; empty: words are hashed, and nobody is asked. `local:FILE.gguf`, or
    `local:` and the name of a model that was fetched: run on this machine."""
    embedding_url: HttpUrl | None = None
    """An OpenAI-compatible endpoint; unset: `models.base_url`."""


class ChatSettings(Section):
    """How a conversation is led."""

    steps: Positive = 8
    """Cells and tools per turn, before the model has to answer."""
    repairs: Positive = 3
    """Cells that fail one after the other, before the model has to say what is wrong."""
    cell_s: Seconds = 120.0
    """For one cell."""
    memory_mb: Positive = 2048
    """For all variables of a session together."""
    disk_mb: Positive = 1024
    policy: Literal["off", "warn", "block"] = "warn"
    """What happens to code that the screen has something against."""
    cells: Literal["auto", "calls", "blocks"] = "auto"
    """How a model runs code: by tool calls, or in blocks labeled `python` in its text."""
    figures: Literal["auto", "kitty", "iterm", "sixel", "file"] = "auto"
    """How the terminal shows pictures; `file` only says where they are."""
