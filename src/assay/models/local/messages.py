"""What the process that holds the model may say, checked word by word as it comes in."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]


class _Heard(BaseModel):
    # The engine may learn to say more; what it says of these things must have this form.
    model_config = ConfigDict(extra="ignore", frozen=True)


class CachedTokens(_Heard):
    """Which part of the prompt had been read before."""

    cached_tokens: Count = 0


class EngineUsage(_Heard):
    """What a reply took."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: CachedTokens = CachedTokens()


class EngineEnd(_Heard):
    """How a reply ended; both are missing when it was given up."""

    finish: str | None = None
    usage: EngineUsage | None = None
    vectors: tuple[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], ...] = ()
    """Of the texts of a request for embeddings, in order."""


class EngineFault(_Heard):
    """Why there is no reply, though the engine is well."""

    type: str = ""
    message: str = "it did not say why"
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class EngineMessage(_Heard):
    """One line. Which fields it has says what it is; `llama_child.py` has the list."""

    ready: bool = False
    failed: str | None = None
    taken: int | None = None
    of: int | None = None
    """The number of the request that the rest is about."""
    text: str = ""
    end: EngineEnd | None = None
    error: EngineFault | None = None
