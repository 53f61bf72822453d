"""Ends work cleanly when the person has had enough of it."""

import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import anyio

Value = TypeVar("Value")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_until_interrupted(work: Callable[[], Coroutine[Any, Any, Value]]) -> Value | None:
    """Do something to its end; SIGINT and SIGTERM end it cleanly, with None.

    What the work raises is raised out of any group that it was raised in.
    """
    value: Value | None = None
    failures: list[Exception] = []

    async def carry_out() -> None:
        nonlocal value
        try:
            value = await work()
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failures.append(_innermost(error))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(carry_out)
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            async for _ in signals:
                tasks.cancel_scope.cancel()
                break
    if failures:
        raise failures[0]
    return value


@contextmanager
def interruptible() -> Generator[None]:
    """Have SIGINT and SIGTERM raise `KeyboardInterrupt` in what keeps the loop waiting.

    A question does: the signal would be heard only after the answer.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _innermost(error: Exception) -> Exception:
    """Return what was raised first, out of the groups around it."""
    if isinstance(error, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", error).exceptions  # Of what kind, nobody can see.
        return _innermost(inner[0])
    return error
