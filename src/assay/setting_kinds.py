"""Kinds of values that settings have."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _http_address(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise ValueError("an http or https address is needed, without a user or a password")
    return text


Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Address = Annotated[str, AfterValidator(_http_address)]


class Section(BaseModel):
    """One table of the settings file. A name that is not known is refused."""

    # A key of the wrong shape must not show in a traceback.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
