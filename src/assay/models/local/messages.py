"""Messages of the model's process, validated on arrival."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]


class _Heard(BaseModel):
    # The engine may add fields; these ones must have this form.
    model_config = ConfigDict(extra="ignore", frozen=True)


class CachedTokens(_Heard):
    """The part of the prompt that came from the cache."""

    cached_tokens: Count = 0


class EngineUsage(_Heard):
    """The token counts of a reply."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: CachedTokens = CachedTokens()


class EngineEnd(_Heard):
    """The end of a reply; both fields are missing for a cancelled one."""

    finish: str | None = None
    usage: EngineUsage | None = None
    vectors: tuple[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], ...] = ()
    """The vectors of an embeddings request, in the order of its texts."""


class EngineFault(_Heard):
    """Why there is no reply although the engine still works."""

    type: str = ""
    message: str = "it did not say why"
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class EngineMessage(_Heard):
    """One line. Its fields define its type; `llama_child.py` has the list."""

    ready: bool = False
    failed: str | None = None
    taken: int | None = None
    of: int | None = None
    """The number of the request that the rest belongs to."""
    text: str = ""
    end: EngineEnd | None = None
    error: EngineFault | None = None
