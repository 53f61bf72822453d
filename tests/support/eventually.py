"""Waiting for what happens in other processes, of which no event tells us."""

from collections.abc import Callable

import anyio

_LOOK_EVERY_S = 0.02


async def eventually(condition: Callable[[], bool], *, within_s: float = 60) -> bool:
    """Look until a condition holds, and say whether it came to that in time."""
    with anyio.move_on_after(within_s):
        while not condition():  # noqa: ASYNC110 - the events are in other processes
            await anyio.sleep(_LOOK_EVERY_S)
        return True
    return condition()
