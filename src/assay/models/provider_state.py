"""What a provider wants to see again with a past turn, as a text that others carry unread.

Signatures and thoughts are worth something only to whoever made them, so the text says who that
was, and nobody else is sent it.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from assay.contracts.messages import Message

_BY = "by"


def seal(by: str, fields: Mapping[str, Any]) -> str:
    """Write down what `by` wants to see again; empty when that is nothing."""
    kept = {name: value for name, value in fields.items() if value}
    return json.dumps({_BY: by, **kept}, ensure_ascii=False) if kept else ""


def unseal(message: Message, by: str) -> Mapping[str, Any]:
    """Return what `by` wrote down with this message; nothing if it was somebody else."""
    try:
        found: object = json.loads(message.provider_state) if message.provider_state else None
    except ValueError:
        return {}
    fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return fields if fields.get(_BY) == by else {}
