"""Preloads modules, so that the first request does not wait for imports.

Commands import components on demand. In a server, the first session would block the event loop for
half a second.
"""

from contextlib import suppress
from importlib import import_module
from typing import Final

from anyio import to_thread

from assay.agent.graph import load_library
from assay.contracts.errors import AssayError, JournalError, MissingExtraError
from assay.models.catalogue import Provider, Wire
from assay.storage.codec import dialogue_from_json, event_from_json, goal_from_json

_PARTS: Final = (
    "assay.memory.resilient",
    "assay.memory.scope",
    "assay.memory.stored_memory",
    "assay.models.open",
    "assay.screening.scan",
)
_WIRES: Final[dict[Wire, str]] = {
    "openai": "assay.models.providers.openai_compatible",
    "anthropic": "assay.models.providers.anthropic",
    "gemini": "assay.models.providers.gemini",
}


async def warm_up() -> None:
    """Load the modules that sessions and runs need with any model."""
    await to_thread.run_sync(_load)


async def load_provider(provider: Provider) -> None:
    """Load the library of a provider, which can take a second, in a thread."""
    await to_thread.run_sync(_import, _WIRES[provider.wire])


def _load() -> None:
    for name in _PARTS:
        _import(name)
    with suppress(MissingExtraError):
        load_library()
    # Event parsers are built on first use.
    for read in (dialogue_from_json, event_from_json, goal_from_json):
        with suppress(JournalError):
            read({})


def _import(name: str) -> None:
    # A missing library is reported where it is needed.
    with suppress(ImportError, AssayError):
        import_module(name)
