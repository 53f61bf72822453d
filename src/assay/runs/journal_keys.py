"""The keys under which a run's journal stores values for a later resume."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from assay.contracts.messages import ModelFacts
from assay.contracts.ports import Model
from assay.contracts.workspace import Withheld

PRISTINE: Final = "pristine"
"""The workspace at the start of the run."""
MODEL: Final = "model"
"""The model: a resumed run keeps it, even if `auto` would select another one now."""
HANDED_OVER: Final = "handed over"
"""The path of the certificate, set after delivery: a resumed run does not deliver twice."""
PACKAGES: Final = "packages"
"""The exact package versions for the sandboxes of this run."""
REPLIES: Final = "reply:"
"""Prefix of the model's replies, which have been paid for."""

_FACTS: Final = TypeAdapter(ModelFacts)
WITHHELD: Final = TypeAdapter(tuple[Withheld, ...])
"""The files that the run cannot see, stored with `PRISTINE`."""


def model_to_json(model: Model) -> dict[str, Any]:
    """Convert the model's name and facts to JSON."""
    return {"name": model.name, "facts": _FACTS.dump_python(model.facts, mode="json")}


def model_from_json(fields: Mapping[str, Any]) -> tuple[str, ModelFacts]:
    """Read the model's name and facts from JSON."""
    return fields["name"], _FACTS.validate_python(fields["facts"])
