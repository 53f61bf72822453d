"""Runs a coroutine function from a test that is not asynchronous itself."""

from collections.abc import Awaitable, Callable

from anyio.from_thread import start_blocking_portal


def run_apart(function: Callable[..., Awaitable[object]], *arguments: object) -> object:
    """Run on a loop in a thread of its own, since a fixture of the session may hold this one's."""
    with start_blocking_portal() as portal:
        return portal.call(function, *arguments)
