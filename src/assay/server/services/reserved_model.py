"""A model wrapper that reserves each call in the quota of a key."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from assay.contracts.errors import BudgetExceededError
from assay.contracts.messages import ModelFacts, Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.budget import estimate_input_tokens
from assay.server.db.models import Used
from assay.server.errors import RequestRejectedError
from assay.server.services.reservations import Call

ReserveCall = Callable[[Call], Awaitable[int]]
"""Callback that returns the token cap of the reply; raises `RequestRejectedError`."""


class HeldModel:
    """Model of one turn: reserves the estimate of each call, and counts its actual usage."""

    def __init__(self, model: Model, reserve: ReserveCall) -> None:
        self._model = model
        self._reserve = reserve
        self._used = Used()

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def facts(self) -> ModelFacts:
        return self._model.facts

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        usual = self.facts.output_limit(request)
        call = Call(
            used=self._used,
            read_tokens=estimate_input_tokens(request),
            written_tokens=usual,
            price=self.facts.price,
        )
        try:
            written = await self._reserve(call)
        except RequestRejectedError as refused:
            raise BudgetExceededError(str(refused), hint=refused.hint) from refused
        if written < usual:
            request = replace(request, max_output_tokens=written)
        reply = await self._model.reply(request, on_text=on_text)
        used = reply.usage
        self._used = Used(
            tokens=self._used.tokens + used.input_tokens + used.output_tokens,
            cost_usd=self._used.cost_usd + (used.cost_usd or 0.0),
        )
        return reply
