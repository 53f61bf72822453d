"""A loop for tests that are not coroutines themselves."""

import contextvars
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

Value = TypeVar("Value")


def run_apart(function: Callable[..., Awaitable[Value]], *arguments: object) -> Value:
    """Run a coroutine function to its end.

    Fixtures that live for the whole session hold a loop open; a fresh context does not know of it.
    """
    return contextvars.Context().run(anyio.run, function, *arguments)
