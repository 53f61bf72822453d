"""Value types of settings."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from assay.contracts.errors import UsageError
from assay.contracts.extensions import find_extensions

BACKENDS: Final = ("native", "docker", "docker+runsc", "e2b", "remote")
"""Assay's own backends."""
BACKEND_GROUP: Final = "assay.backends"
"""Group of the entry points of other distributions that add a backend."""


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends: Assay's own, then those of other distributions.

    Raises:
        UsageError: If two distributions declare one name, or one declares a name of Assay.
    """
    return (*BACKENDS, *sorted(find_extensions(BACKEND_GROUP, taken=("auto", *BACKENDS))))


def _backend(name: str) -> str:
    # Looks for other distributions only if the name is not Assay's own.
    if name not in ("auto", *BACKENDS) and name not in (known := backend_names()):
        raise UsageError(
            f"setting sandbox.backend: unknown backend {name!r}",
            hint=f"choose from: {', '.join(('auto', *known))}",
        )
    return name


def _http_address(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise ValueError("an http or https address is needed, without a user or a password")
    return text


def _split(value: object) -> object:
    # Environment variables contain lists in a readable form.
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _split_twice(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [_split(part) for part in value.split(";") if part.strip()]


def _split_between_packages(value: object) -> object:
    """Split at commas, except within brackets: `requests[socks,http2]>=2,<3`."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in _NEXT_PACKAGE.split(value) if part.strip()]


_NEXT_PACKAGE: Final = re.compile(r",(?=\s*\w)(?![^\[]*\])")

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
BackendName = Annotated[str, AfterValidator(_backend)]
HttpUrl = Annotated[str, AfterValidator(_http_address)]
WithCommas = BeforeValidator(_split)
"""A list that may also be one text: `a, b`."""
StrList = Annotated[tuple[str, ...], WithCommas]
Paths = Annotated[tuple[Path, ...], WithCommas]
Packages = Annotated[tuple[str, ...], BeforeValidator(_split_between_packages)]
StrLists = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_split_twice)]
"""A list of lists that may also be one text: `a, b; c`."""


class Section(BaseModel):
    """One table of the settings file. Unknown names are an error."""

    # A malformed key must not appear in a traceback.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def secrets_in(section: Section) -> tuple[str, ...]:
    """Return every secret in these settings, for redaction."""
    found: list[str] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        mapped = isinstance(value, Mapping)
        for each in cast("Mapping[str, Any]", value).values() if mapped else (value,):
            if isinstance(each, SecretStr):
                found.append(each.get_secret_value())
            elif isinstance(each, Section):
                found += secrets_in(each)
    return tuple(found)
