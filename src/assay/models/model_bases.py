"""Base classes of models: a model of a provider, and a model around another one."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

from assay.contracts.errors import AssayError, ModelUnavailableError
from assay.contracts.messages import ModelInfo, ReasoningEffort, Reply, Request
from assay.contracts.ports import Model, OnText, ignore_text
from assay.models.catalogue import Provider, quirks_for
from assay.models.connection import Connection, explain_failure
from assay.models.stream_builder import ReplyDraft

_REASONING_TOKENS: Final[Mapping[ReasoningEffort, int]] = {
    "none": 0,
    "minimal": 1024,
    "low": 4096,
    "medium": 16_384,
    "high": 32_768,
    "xhigh": 65_536,
    "max": 131_072,
}
"""For APIs that take a number of tokens instead of an effort."""

Client = TypeVar("Client")
Event = TypeVar("Event")


def reasoning_tokens(effort: ReasoningEffort, output_limit: int) -> int:
    """Return the tokens of a reply that are for reasoning: at most half of the reply."""
    return min(_REASONING_TOKENS[effort], output_limit // 2)


class WrappedModel:
    """A model around another one, with its name and properties."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def info(self) -> ModelInfo:
        return self._model.info


class ProviderModel(ABC, Generic[Client, Event]):
    """One model of a provider, asked through the provider's SDK.

    A subclass opens the stream of a request, takes its events and explains the SDK's errors.
    """

    def __init__(
        self,
        client: Client,
        *,
        provider: Provider,
        model: str,
        info: ModelInfo,
        connection: Connection,
    ) -> None:
        self._client = client
        self._provider = provider
        self._model = model
        self._info = info
        self._connection = connection
        self._quirks = quirks_for(model)

    @property
    def name(self) -> str:
        return f"{self._provider.name}:{self._model}"

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        prefill = request.prefill if self._info.supports_prefill else ""
        draft = ReplyDraft(request, on_text, prefill=prefill, unsent=self._unsent(prefill))
        async with aclosing(self._events(request)) as events:
            async for event in events:
                self._take(event, draft)
        if draft.stop_reason is None:
            raise self._unavailable("broke off before the end of its answer")
        return draft.finish(self._model, draft.stop_reason, by=self.name)

    @abstractmethod
    def _stream(self, request: Request) -> AsyncGenerator[Event]:
        """Send the request, and yield the events of the answer."""

    @abstractmethod
    def _take(self, event: Event, draft: ReplyDraft) -> None:
        """Add one event to the reply."""

    @abstractmethod
    def _explain(self, error: Exception) -> AssayError | None:
        """Return the failure for an exception of the SDK; None for all others."""

    def _unsent(self, prefill: str) -> str:
        """Return the end of the prefill that the provider does not accept."""
        del prefill
        return ""

    async def _events(self, request: Request) -> AsyncGenerator[Event]:
        """Yield the events. Translates only exceptions of the SDK, not those of listeners."""
        import httpx2

        failure: AssayError | None = None
        try:
            async with aclosing(self._stream(request)) as events:
                async for event in events:
                    yield event
        except Exception as error:
            failure = self._explain(error)
            match error:
                case _ if failure is not None:
                    pass
                case httpx2.HTTPError():
                    failure = self._unanswered(error)
                case ValueError():
                    failure = self._unavailable(f"sent what cannot be read: {error}")
                case _:
                    raise
        # Outside of the handler, so that the SDK's error with the whole request is not the context.
        if failure is not None:
            raise failure

    def _explain_by_kind(self, error: Exception, sdk: Any) -> AssayError | None:
        """Return the failure for the exceptions that the SDKs of OpenAI and Anthropic share."""
        match error:
            case sdk.APIConnectionError():
                return self._unanswered(error.__cause__ or error)
            case sdk.APIStatusError():
                return self._failure(error.status_code, error.body, error.response.headers)
            case sdk.APIError():
                return self._failure(200, error.body or error.message)
            case _:
                return None

    def _failure(self, status: int, body: object, headers: Any = None) -> AssayError:
        return explain_failure(
            status, body, name=self.name, connection=self._connection, headers=headers
        )

    def _unavailable(self, what: str, *, hint: str = "") -> ModelUnavailableError:
        return ModelUnavailableError(f"{self.name} {self._connection.clean(what)}", hint=hint)

    def _unanswered(self, error: BaseException) -> ModelUnavailableError:
        """Return the failure of a request without a complete answer.

        Only a request that did not reach the provider is certainly not charged.
        """
        import httpx2

        match error:
            case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
                within_s = self._connection.connect_timeout_s
                return self._unreached(f"could not be reached within {within_s:g} s")
            case httpx2.ConnectError():
                return self._unreached(f"cannot be reached: {error}")
            case httpx2.TimeoutException():
                return self._unavailable(
                    f"sent nothing for {self._connection.silence_s:g} s. The request is not sent "
                    "again, because the provider may charge for it",
                    hint="raise `models.timeout_s` for a model that is slow, then continue",
                )
            case _:
                return self._unavailable(
                    f"cannot be reached, or broke off: {error}",
                    hint="check the network and the base URL, and that the server runs",
                )

    def _unreached(self, what: str) -> ModelUnavailableError:
        return ModelUnavailableError(
            f"{self.name} {self._connection.clean(what)}",
            hint="check the network and the base URL, and that the server runs",
            not_charged=True,
        )
