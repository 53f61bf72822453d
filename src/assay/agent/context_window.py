"""Fit a message history into the context window and keep its beginning. Pure."""

from dataclasses import replace
from typing import Final

from assay.contracts.messages import Message, ModelFacts

_CHARS_PER_TOKEN: Final = 3
_SHARE: Final = 0.7
_KEPT_BEGINNING: Final = 2
"""The system message and the goal."""
_KEPT_END: Final = 6
_STUB_CHARS: Final = 200


def shortened(messages: tuple[Message, ...], facts: ModelFacts) -> tuple[Message, ...]:
    """Return the messages; if they are too long, the oldest after the beginning are cut first."""
    room = int(facts.context_tokens * _CHARS_PER_TOKEN * _SHARE)
    total = sum(len(message.text) for message in messages)
    result = list(messages)
    for place in range(_KEPT_BEGINNING, len(messages) - _KEPT_END):
        if total <= room:
            break
        message = messages[place]
        if len(message.text) > _STUB_CHARS:
            cut = f"{message.text[:_STUB_CHARS]}\n[the rest was left out]"
            result[place] = replace(message, text=cut)
            total -= len(message.text) - len(cut)
    return tuple(result)
