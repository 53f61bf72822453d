"""Messages between Assay and a model, independent of any provider's wire format."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

_CONTEXT_PER_REPLY: Final = 4
"""Leaves three quarters of a small context for the messages."""

Role = Literal["system", "user", "assistant", "tool"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons before it answers. Not every model knows every one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool that a model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments, of type object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call of a model."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    """None if the model did not write a JSON object; `written` then has the text."""
    written: str = ""
    """The arguments as the model wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image for a model."""

    media_type: str
    base64: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only from the assistant."""
    answers: str = ""
    """Only from a tool: the id of the call that this answers."""
    provider_state: str = ""
    """Only from the assistant: data that its provider needs with this message again, such as signed
    reasoning. Only the wire format that wrote it can read it."""
    pictures: tuple[Picture, ...] = ()
    """Only from the user, for models that accept images (`ModelInfo.sees_pictures`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that a model needs for one reply."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None
    """None: what the model can write, see `ModelInfo.output_limit`."""
    temperature: float | None = None
    """None leaves it to the model's own default."""
    seed: int | None = None
    """Seed for models that support it: the same seed gives the same sample, as far as the model
    guarantees that. None uses a new seed each time."""
    stop: tuple[str, ...] = ()
    prefill: str = ""
    """Prefix of the reply, for models that support prefill; part of the reply's text."""
    json_schema: Mapping[str, Any] | None = None
    """JSON Schema that the reply's text must follow, for models that support it."""


class StopReason(StrEnum):
    """Reason why a model stopped writing."""

    ENDED = "ended"
    """It finished, or reached a stop word."""
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    """It reached `max_output_tokens` or the end of its context."""
    FILTERED = "filtered"
    """The provider withheld the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens, calls and cost of one or many replies."""

    input_tokens: int = 0
    """All input tokens, including cached ones."""
    cached_input_tokens: int = 0
    """The part of the input that the provider read from its cache."""
    cache_write_tokens: int = 0
    """The part of the input that the provider wrote to its cache, if it reports that."""
    output_tokens: int = 0
    """All output tokens, including reasoning."""
    reasoning_tokens: int = 0
    calls: int = 0
    """Requests sent, including retries and failures."""
    cost_usd: float | None = 0.0
    """None if a price is not known."""
    saved_usd: float = 0.0
    """What the provider's cache saved, less what writing to it cost; zero without a price."""

    def __add__(self, other: "Usage") -> "Usage":
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            calls=self.calls + other.calls,
            cost_usd=(self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
            saved_usd=self.saved_usd + other.saved_usd,
        )

    def __sub__(self, earlier: "Usage") -> "Usage":
        known = self.cost_usd is not None and earlier.cost_usd is not None
        return Usage(
            input_tokens=self.input_tokens - earlier.input_tokens,
            cached_input_tokens=self.cached_input_tokens - earlier.cached_input_tokens,
            cache_write_tokens=self.cache_write_tokens - earlier.cache_write_tokens,
            output_tokens=self.output_tokens - earlier.output_tokens,
            reasoning_tokens=self.reasoning_tokens - earlier.reasoning_tokens,
            calls=self.calls - earlier.calls,
            cost_usd=(self.cost_usd or 0.0) - (earlier.cost_usd or 0.0) if known else None,
            saved_usd=self.saved_usd - earlier.saved_usd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply of a model."""

    message: Message
    stop_reason: StopReason
    usage: Usage
    model: str
    """Name of the model as the provider reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per million tokens."""

    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    """None: the same as other input."""
    cache_write_usd: float | None = None
    """For input that is reported as written to the cache; None: the same as other input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Properties of a model that decide how Assay uses it."""

    context_tokens: int
    max_output_tokens: int
    tool_calls: bool
    """Whether it makes native tool calls; otherwise it uses the plain-text protocol."""
    price: Price | None
    """None if unknown; a model on this machine has a known price of zero."""
    supports_prefill: bool = False
    supports_json_schema: bool = False
    supports_seed: bool = False
    local: bool = False
    """Runs on this machine, and so is free."""
    small: bool = False
    """Has few parameters: better at independent samples than at repairs, plans and tools."""
    sees_pictures: bool = False
    """Whether it accepts images."""
    reasoning_effort: ReasoningEffort | None = None
    """None leaves it to the model's own default."""
    cells_in_text: bool = False
    """Writes the cells of a session into its text, even if it makes native tool calls."""

    def output_limit(self, request: Request) -> int:
        """Return the token cap of a reply: the requested one, within what the model can write."""
        usual = self.context_tokens // _CONTEXT_PER_REPLY
        asked = usual if request.max_output_tokens is None else request.max_output_tokens
        return max(min(asked, self.max_output_tokens), 1)
