"""What every model promises, one coroutine per promise, to be run against any wire format."""

from tests.conformance.model import failures, replies, requests, tool_calls
from tests.conformance.model.promise import ModelPromise, promises_in
from tests.conformance.model.subject import (
    Answers,
    BadJson,
    Behaviour,
    CallsTools,
    CorruptStream,
    CutsOff,
    FailsMidway,
    Kind,
    LocksOut,
    ModelSubject,
    NoResponse,
    Opened,
    Overflows,
    Peer,
    PlayedCall,
    Says,
    TurnsAway,
)

__all__ = [
    "MODEL_PROMISES",
    "Answers",
    "BadJson",
    "Behaviour",
    "CallsTools",
    "CorruptStream",
    "CutsOff",
    "FailsMidway",
    "Kind",
    "LocksOut",
    "ModelPromise",
    "ModelSubject",
    "NoResponse",
    "Opened",
    "Overflows",
    "Peer",
    "PlayedCall",
    "Says",
    "TurnsAway",
]

MODEL_PROMISES: tuple[ModelPromise, ...] = tuple(
    found for module in (replies, requests, tool_calls, failures) for found in promises_in(module)
)
"""In the order in which a new wire format best makes them true."""
