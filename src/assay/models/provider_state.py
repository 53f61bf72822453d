"""Provider state: the text that a provider needs back with a past turn, opaque for others.

Only the provider that created signatures and thoughts can use them, so the text names that
provider, and no other one receives it.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from assay.contracts.messages import Message

_BY = "by"


def seal(by: str, fields: Mapping[str, Any]) -> str:
    """Encode the state of `by`; empty if there is none."""
    kept = {name: value for name, value in fields.items() if value}
    return json.dumps({_BY: by, **kept}, ensure_ascii=False) if kept else ""


def unseal(message: Message, by: str) -> Mapping[str, Any]:
    """Return the state that `by` stored with this message; empty if another provider stored it."""
    try:
        found: object = json.loads(message.provider_state) if message.provider_state else None
    except ValueError:
        return {}
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return fields if fields.get(_BY) == by else {}
