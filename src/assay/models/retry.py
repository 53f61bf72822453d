"""Asks again when a model was not there, as long as that is honest and not too long.

Put it around a metered model, not inside one: `RetryingModel(MeteredModel(model, meter))`. Each
attempt is then a call of its own, set aside and counted before it is made.
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
    """How often to ask, and how long to wait in between."""

    attempts: int = 5
    """In all, the first one included."""
    first_wait_s: float = 0.5
    """Doubled each time, and shortened by chance, so that many who wait do not come at once."""
    longest_wait_s: float = 30.0
    """Of one's own choosing; a provider may ask for more."""
    total_wait_s: float = 120.0
    """Between all attempts. A wait that would go over it is not begun."""


class RetryingModel:
    """A model that is asked again when it is unavailable; every other failure passes at once.

    Text that was told to a listener cannot be taken back, and a second answer would not begin with
    the same words. So what breaks off after that is not asked again: the failure passes, and
    whoever listens decides. Where nobody listens, it is asked again.
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
        """Whether somebody was told something."""

    def __call__(self, text: str) -> None:
        self.heard = self.heard or self._on_text is not ignore_text
        self._on_text(text)
