"""Discovery of models on an OpenAI-compatible server, with a short timeout."""

from dataclasses import dataclass
from typing import Final, cast

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError

from assay.models.connection import Connection, build_http_client


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model of a server."""

    name: str
    context_tokens: int | None = None
    """The server's context size, which may be below the model's; None if unknown."""


SURVEY_HEADER: Final = "X-Assay-Survey"
"""Tells another Assay service not to query further servers."""
_OURSELVES: Final = "assay"


class _Listed(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    id: str
    owned_by: object = None
    # Names of context sizes in vLLM and llama.cpp. Other servers may use these names differently.
    max_model_len: object = None
    meta: object = None

    def as_served(self) -> ServedModel:
        meta: object = self.meta
        known = cast("dict[str, object]", meta) if isinstance(meta, dict) else {}
        sizes = (self.max_model_len, known.get("n_ctx"))
        told = (size for size in sizes if isinstance(size, int) and size > 0)
        return ServedModel(name=self.id, context_tokens=next(told, None))


class _Listing(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    data: list[_Listed] | None


async def list_models(
    connection: Connection, *, patience_s: float
) -> tuple[ServedModel, ...] | None:
    """Return the text models; None if no such server answers.

    Another program may use the port: only an answer in the right format counts. An answer of an
    Assay service does not count, because it would query a model itself.
    """
    import httpx2

    key = connection.api_key.get_secret_value()
    headers = {SURVEY_HEADER: "1"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    address = connection.base_url.rstrip("/") + "/models"
    async with build_http_client(connection) as client:
        with anyio.move_on_after(patience_s):
            try:
                answer = await client.get(address, headers=headers)
                if not answer.is_success:
                    return None
                listed = _Listing.model_validate_json(answer.content).data or []
            except (httpx2.HTTPError, httpx2.InvalidURL, ValidationError):
                return None
            if any(model.owned_by == _OURSELVES for model in listed):
                return None
            return tuple(model.as_served() for model in listed if "embed" not in model.id.lower())
    return None
