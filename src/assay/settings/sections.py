"""Settings of sessions, MCP, tools, screening and failure memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from assay.settings.types import HttpUrl, Packages, Positive, Seconds, Section, StrList

Approval = Literal["allow", "ask", "deny"]
"""Whether a model may call a tool: always, after the user's approval, or never."""

ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,23}$")]


class McpSettings(Section):
    """Settings of Assay's MCP servers."""

    hosts: StrList = ()
    """Host names of the servers, in addition to their own address: `tools.example.org:*`."""
    origins: StrList = ()
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


class ChatSettings(Section):
    """Defaults for chat sessions."""

    steps: Positive = 8
    """Cells and tool calls per turn, before the model must answer."""
    repairs: Positive = 3
    """Consecutive failed cells, before the model must explain the problem."""
    cell_s: Seconds = 120.0
    """For one cell."""
    memory_mb: Positive = 2048
    """For all variables of a session together."""
    disk_mb: Positive = 1024
    policy: Literal["off", "warn", "block"] = "warn"
    """Action on policy violations in generated code."""
    cells: Literal["auto", "calls", "blocks"] = "auto"
    """How a model sends code: as tool calls, or as blocks labeled `python` in its text."""
    figures: Literal["auto", "kitty", "iterm", "sixel", "file"] = "auto"
    """How the terminal shows images; `file` only prints their paths."""
