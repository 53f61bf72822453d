"""What every model promises, one coroutine per promise, to be run against any wire format."""

from tests.conformance.model import failures, replies, requests, tool_calls
from tests.conformance.model.promise import ModelPromise, promises_in
from tests.conformance.model.subject import (
    Answers,
    Behaviour,
    CallsTools,
    CutsOff,
    FailsMidway,
    FallsSilent,
    Garbles,
    Kind,
    LocksOut,
    ModelSubject,
    Opened,
    Overflows,
    Peer,
    PlayedCall,
    Says,
    TalksNonsense,
    TurnsAway,
)

__all__ = [
    "MODEL_PROMISES",
    "Answers",
    "Behaviour",
    "CallsTools",
    "CutsOff",
    "FailsMidway",
    "FallsSilent",
    "Garbles",
    "Kind",
    "LocksOut",
    "ModelPromise",
    "ModelSubject",
    "Opened",
    "Overflows",
    "Peer",
    "PlayedCall",
    "Says",
    "TalksNonsense",
    "TurnsAway",
]

MODEL_PROMISES: tuple[ModelPromise, ...] = tuple(
    found for module in (replies, requests, tool_calls, failures) for found in promises_in(module)
)
"""In the order in which a new wire format best makes them true."""
