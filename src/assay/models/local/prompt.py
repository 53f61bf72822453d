"""Converts a request into the engine's form of a chat completion.

The engine applies the chat template of the weights and knows the tokens that end a turn.
"""

import re
from typing import Any

from assay.contracts.messages import Message, ModelFacts, Request
from assay.models.local.weights import Sampling

_SEEDS = 2**32 - 1
"""The engine uses 32 bits, and takes the largest number for no seed."""
_CONTROL_TOKEN = re.compile(r"<\|(?=[a-z_]+\|>)")


def chat_body(request: Request, sampling: Sampling, *, facts: ModelFacts) -> dict[str, Any]:
    """Return the request in the engine's form."""
    messages = [_turn(message) for message in request.messages]
    if request.prefill:
        # The engine continues a final assistant turn.
        messages.append({"role": "assistant", "content": request.prefill})
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": facts.output_limit(request),
        "stop": [word for word in request.stop if word],  # an empty one would stop immediately
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "cache_prompt": True,
        **_drawing(request, sampling),
    }
    if request.seed is not None:
        body["seed"] = request.seed % _SEEDS
    if request.json_schema is not None:
        body["json_schema"] = dict(request.json_schema)
    return body


def _drawing(request: Request, sampling: Sampling) -> dict[str, float]:
    if request.temperature is None:
        return sampling.model_dump()
    # A requested temperature gives exactly that variety: no penalty, which would distort even
    # temperature zero, and the engine's own wide selection.
    return Sampling(temperature=request.temperature).model_dump()


def _turn(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": without_control_tokens(message.text)}


def without_control_tokens(text: str) -> str:
    """Break up text that the engine would read as the end or the start of a turn.

    The engine searches the finished prompt for control tokens. It cannot distinguish Assay's own
    from those in a file or in program output, which could then act as the system.
    """
    return _CONTROL_TOKEN.sub("< |", text)
