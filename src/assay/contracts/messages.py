"""A dialogue with a model, in nobody's wire format."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

USUAL_OUTPUT_TOKENS: Final = 16_384
"""The most that is asked for where nobody says: room to think, and a bill that can be borne."""
_CONTEXT_PER_REPLY: Final = 4
"""A reply of the usual length leaves three quarters of a small context to the conversation."""

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model may ask for."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments, an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One thing a model asked for."""

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    """None when what the model wrote is not a JSON object; `written` has it then."""
    written: str = ""
    """The arguments as the model wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image that a model looks at."""

    media_type: str
    base64: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only from the assistant."""
    answers: str = ""
    """Only from a tool: the id of the call that this answers."""
    provider_state: str = ""
    """Only from the assistant: what its provider wants to see again with this turn, such as signed
    thoughts. Keep it with the message; only the wire format that wrote it can read it."""
    pictures: tuple[Picture, ...] = ()
    """Only from the user, to models that see (`ModelFacts.sees_pictures`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything a model needs to know to reply once."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None
    """None: plenty for this model, see `ModelFacts.output_limit`."""
    temperature: float | None = None
    """None leaves it to the model's own default."""
    seed: int | None = None
    """What draws the tokens, for models that can be told: the same again gives the same sample, as
    far as the model promises that. None draws anew each time."""
    stop: tuple[str, ...] = ()
    prefill: str = ""
    """How the reply has to begin, for models that can be led; part of the reply's text."""
    json_schema: Mapping[str, Any] | None = None
    """What the text of the reply has to look like, for models that can be held to it."""


class StopReason(StrEnum):
    """Why a model stopped writing."""

    ENDED = "ended"
    """It was done, or came to a stop word."""
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    """It ran into `max_output_tokens` or the end of its context."""
    FILTERED = "filtered"
    """The provider withheld the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one or many replies took."""

    input_tokens: int = 0
    """All that was read, cached or not."""
    cached_input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    """Requests sent, retries and failed ones included."""
    cost_usd: float | None = 0.0
    """None when a price is not known."""

    def __add__(self, other: "Usage") -> "Usage":
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            calls=self.calls + other.calls,
            cost_usd=(self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a model answered."""

    message: Message
    stop_reason: StopReason
    usage: Usage
    model: str
    """Who answered, as the provider names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per million tokens."""

    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None
    """None: as much as other input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What one must know of a model to use it well."""

    context_tokens: int
    max_output_tokens: int
    tool_calls: bool
    """Whether it makes native tool calls; otherwise it speaks the plain-text protocol."""
    price: Price | None
    """None when unknown; a model that runs here costs nothing, which is known."""
    supports_prefill: bool = False
    supports_json_schema: bool = False
    supports_seed: bool = False
    local: bool = False
    """Runs on this machine: small, free, and better sampled several times than asked to repair."""
    sees_pictures: bool = False
    """Whether it takes images."""
    cells_in_text: bool = False
    """Writes the cells of a conversation into its text, even if it makes native tool calls."""

    def output_limit(self, request: Request) -> int:
        """How many tokens a reply may have: what was asked for, and no more than can be written."""
        usual = min(USUAL_OUTPUT_TOKENS, self.context_tokens // _CONTEXT_PER_REPLY)
        asked = usual if request.max_output_tokens is None else request.max_output_tokens
        return max(min(asked, self.max_output_tokens), 1)
