"""Retries of an unavailable model, within limits of count and time.

Put it around a metered model, not inside one: `RetryingModel(MeteredModel(model, meter))`. Each
attempt is then a separate call with its own reservation.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from assay.contracts.errors import ModelUnavailableError
from assay.contracts.messages import ModelFacts, Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts and the waits between them."""

    attempts: int = 5
    """Including the first one."""
    first_wait_s: float = 0.5
    """Doubled each time, and randomly shortened, so that clients do not retry simultaneously."""
    longest_wait_s: float = 30.0
    """For waits that Assay chooses; a provider may request more."""
    total_wait_s: float = 120.0
    """The sum over all attempts. A wait beyond it is not started."""


class RetryingModel:
    """A model that retries when it is unavailable; all other failures pass immediately.

    Text that a listener received cannot be revoked, and a second answer would start with different
    words. So a failure after such text is not retried: it passes, and the listener decides. Without
    a listener, it is retried.
    """

    def __init__(
        self,
        model: Model,
        policy: RetryPolicy | None = None,
        *,
        sleep: Sleep = anyio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._chance = chance

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def facts(self) -> ModelFacts:
        return self._model.facts

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        listener = _Listener(on_text)
        waited_s = 0.0
        attempt = 1
        while True:
            try:
                return await self._model.reply(request, on_text=listener)
            except ModelUnavailableError as error:
                wait_s = self._wait_s(error, attempt)
                over = waited_s + wait_s > self._policy.total_wait_s
                if attempt >= self._policy.attempts or over or listener.heard:
                    raise
            waited_s += wait_s
            attempt += 1
            await self._sleep(wait_s)

    def _wait_s(self, error: ModelUnavailableError, attempt: int) -> float:
        if error.retry_after_s is not None:
            return error.retry_after_s
        doubled = self._policy.first_wait_s * 2.0 ** (attempt - 1)
        return min(doubled, self._policy.longest_wait_s) * (0.5 + 0.5 * self._chance())


class _Listener:
    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self.heard = False
        """Whether a listener received text."""

    def __call__(self, text: str) -> None:
        self.heard = self.heard or self._on_text is not ignore_text
        self._on_text(text)
