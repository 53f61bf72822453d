"""Under which keys a run's journal keeps what later sittings need."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from assay.contracts.messages import ModelFacts
from assay.contracts.ports import Model
from assay.contracts.workspace import Withheld

PRISTINE: Final = "pristine"
"""The workspace as it was when the run began."""
MODEL: Final = "model"
"""Who answers: the same model goes on, also if `auto` would choose another one by now."""
HANDED_OVER: Final = "handed over"
"""Where the certificate was put, once the files were: done once, however often it is resumed."""
PACKAGES: Final = "packages"
"""The exact versions that sandboxes of this run are given."""
REPLIES: Final = "reply:"
"""Everything that was paid for."""

_FACTS: Final = TypeAdapter(ModelFacts)
WITHHELD: Final = TypeAdapter(tuple[Withheld, ...])
"""What a run does not see of the workspace, as it is kept beside `PRISTINE`."""


def model_to_json(model: Model) -> dict[str, Any]:
    """Write down who answers."""
    return {"name": model.name, "facts": _FACTS.dump_python(model.facts, mode="json")}


def model_from_json(fields: Mapping[str, Any]) -> tuple[str, ModelFacts]:
    """Read back who answered."""
    return fields["name"], _FACTS.validate_python(fields["facts"])
