"""Observers of the events of all users, for metrics and traces; by default none."""

from typing import Final, Protocol

from assay.contracts.chat import ChatEvent
from assay.contracts.events import RunEvent


class Observer(Protocol):
    """Receives every event, in the event loop. Must not block."""

    def dialogue_event(self, session: str, event: ChatEvent) -> None: ...

    def run_event(self, run: str, event: RunEvent) -> None: ...


class _Nobody:
    def dialogue_event(self, session: str, event: ChatEvent) -> None:
        del session, event

    def run_event(self, run: str, event: RunEvent) -> None:
        del run, event


NULL_OBSERVER: Final[Observer] = _Nobody()
