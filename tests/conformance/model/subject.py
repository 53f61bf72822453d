"""What a test sets up: a model, and the other end of its wire, which behaves as it is told."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from assay.contracts.messages import ModelInfo, Request, StopReason, Usage
from assay.contracts.ports import Model

_SOME_USAGE = Usage(input_tokens=11, cached_input_tokens=3, output_tokens=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The peer answers as it likes, at some length: all that a real model can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """The peer says these pieces, one after the other."""

    pieces: tuple[str, ...]
    stop_reason: StopReason = StopReason.ENDED
    usage: Usage = _SOME_USAGE
    waits_after: int | None = None
    """After that many pieces it waits until it is told to go on."""
    splits_bytes: bool = False
    """Every byte is sent by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedCall:
    """A tool call as the peer makes it."""

    name: str
    written: str
    """The arguments, as they are on the wire; not always JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsTools:
    """The peer asks for tools."""

    calls: tuple[PlayedCall, ...]
    text: str = ""
    state: str = ""
    """What the peer sends along, under whatever name, and wants to see again with this turn."""
    stop_reason: StopReason = StopReason.TOOL_CALLS


class Kind(StrEnum):
    """Why a peer turns a request away."""

    RATE_LIMITED = "rate_limited"
    BROKEN = "broken"
    MALFORMED = "malformed"
    """It does not like the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsAway:
    """The peer answers with an error in place of a reply."""

    kind: Kind
    retry_after: str = ""
    """The header's value; empty sends none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflows:
    """The peer says that a request longer than `info.context_tokens` is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksOut:
    """The peer does not take the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailsMidway:
    """The peer says these pieces, then that it cannot go on."""

    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """The peer says these pieces and then nothing, for longer than the model is ready to wait."""

    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutsOff:
    """The peer says these pieces, and the connection breaks."""

    pieces: tuple[str, ...] = ()
    politely: bool = False
    """The stream ends as streams do, only too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptStream:
    """The peer says these pieces, then what is not JSON."""

    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadJson:
    """The peer answers with success, and a page in place of a reply."""


Behaviour = (
    Answers
    | Says
    | CallsTools
    | TurnsAway
    | Overflows
    | LocksOut
    | FailsMidway
    | NoResponse
    | CutsOff
    | CorruptStream
    | BadJson
)


class Peer(Protocol):
    """The other end of the wire, as a test sees it."""

    @property
    def received(self) -> Sequence[Request]:
        """What arrived, read back from the wire. Ids of calls and white space are kept.

        `Message.provider_state` is what `CallsTools.state` sent, if it came back.
        """
        ...

    def go_on(self) -> None:
        """End the wait of `Says.waits_after`."""
        ...

    async def wait_until_left(self) -> None:
        """Return once the model has closed the connection of a request under way."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model and its peer, ready to talk."""

    model: Model
    peer: Peer


class ModelSubject(Protocol):
    """A kind of model that is held to the contract."""

    @property
    def info(self) -> ModelInfo:
        """What its models can do."""
        ...

    @property
    def secret(self) -> str:
        """The key that the model is given, also when its peer locks it out, and may quote it."""
        ...

    @property
    def plays(self) -> frozenset[type[Behaviour]]:
        """What its peer can be told to do."""
        ...

    @property
    def observes(self) -> bool:
        """Whether its peer can tell what it received, and when it was left."""
        ...

    def open(self, behaviour: Behaviour) -> AbstractAsyncContextManager[Opened]:
        """Start a peer that behaves so to every request, and a model that talks to it."""
        ...
