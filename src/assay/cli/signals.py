"""Clean cancellation on SIGINT and SIGTERM."""

import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import anyio

Value = TypeVar("Value")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_until_interrupted(work: Callable[[], Coroutine[Any, Any, Value]]) -> Value | None:
    """Run the work to completion; on SIGINT or SIGTERM cancel it cleanly and return None.

    An error of the work is raised without the exception groups around it.
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
    """Make SIGINT and SIGTERM raise `KeyboardInterrupt` in code that blocks the event loop.

    During a question, the signal would otherwise take effect only after the answer.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _innermost(error: Exception) -> Exception:
    """Return the first error without the groups around it."""
    if isinstance(error, ExceptionGroup):
        inner = cast("ExceptionGroup[Exception]", error).exceptions  # `isinstance` hides the type.
        return _innermost(inner[0])
    return error
