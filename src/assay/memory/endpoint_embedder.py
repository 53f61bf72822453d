"""Embeddings from an OpenAI-compatible endpoint: a provider, or a server on this machine."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from assay.contracts.errors import MissingExtraError, ModelUnavailableError
from assay.memory.embedding import pack

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_BATCH: Final = 64
_MAX_CHARS: Final = 4_000
_TIMEOUT_S: Final = 20.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_KEY: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address and the model of an embedding endpoint."""

    base_url: str
    model: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))


@asynccontextmanager
async def open_endpoint_embedder(endpoint: Endpoint) -> AsyncGenerator["EndpointEmbedder"]:
    """Open a connection to an endpoint; leaving the context closes it.

    Raises:
        MissingExtraError: If the SDK is not installed.
    """
    try:
        import httpx2
        from openai import AsyncOpenAI, Omit
    except ImportError as error:
        raise MissingExtraError("asking for embeddings", extra="openai") from error

    # As for models: a key goes only to its own provider, and local servers need no proxy.
    client = httpx2.AsyncClient(
        timeout=_TIMEOUT_S,
        follow_redirects=False,
        trust_env=urlsplit(endpoint.base_url).hostname not in _LOOPBACK,
    )
    async with AsyncOpenAI(
        api_key=endpoint.api_key.get_secret_value() or _NO_KEY,
        base_url=endpoint.base_url,
        max_retries=1,
        default_headers={"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()},  # pyright: ignore[reportArgumentType] - documented
        http_client=client,
    ) as sdk:
        yield EndpointEmbedder(sdk, endpoint)


class EndpointEmbedder:
    """Requests vectors in batches."""

    def __init__(self, client: "AsyncOpenAI", endpoint: Endpoint) -> None:
        self._client = client
        self._model = endpoint.model
        self.name = f"{endpoint.model} at {urlsplit(endpoint.base_url).netloc}"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        packed: list[bytes] = []
        for start in range(0, len(texts), _BATCH):
            packed += await self._batch(texts[start : start + _BATCH])
        return packed

    async def _batch(self, texts: Sequence[str]) -> list[bytes]:
        from openai import OpenAIError

        # Many servers refuse an empty text.
        wanted = [text[:_MAX_CHARS] or " " for text in texts]
        try:
            answer = await self._client.embeddings.create(
                model=self._model, input=wanted, encoding_format="float"
            )
        except OpenAIError as error:
            raise ModelUnavailableError(f"no embeddings from {self.name}: {error}") from error
        vectors = sorted(answer.data, key=lambda one: one.index)
        lengths = {len(one.embedding) for one in vectors}
        if len(vectors) != len(wanted) or len(lengths) != 1:
            raise ModelUnavailableError(
                f"{self.name} sent {len(vectors)} vectors for {len(wanted)} texts, "
                f"of {len(lengths)} lengths"
            )
        return [pack(one.embedding) for one in vectors]
