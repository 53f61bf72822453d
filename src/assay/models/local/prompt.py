"""From a request to what the engine is asked, in its form of a chat completion.

The chat template is the one inside the weights, applied by the engine, which also knows the tokens
that end a turn.
"""

import re
from typing import Any

from assay.contracts.messages import Message, ModelFacts, Request
from assay.models.local.weights import Sampling

_SEEDS = 2**32 - 1
"""The engine counts with 32 bits, and takes the largest of those numbers for none at all."""
_CONTROL_TOKEN = re.compile(r"<\|(?=[a-z_]+\|>)")


def chat_body(request: Request, sampling: Sampling, *, facts: ModelFacts) -> dict[str, Any]:
    """Return the request as the engine reads it."""
    messages = [_turn(message) for message in request.messages]
    if request.prefill:
        # The engine goes on where a last turn of the assistant ends.
        messages.append({"role": "assistant", "content": request.prefill})
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": facts.output_limit(request),
        "stop": [word for word in request.stop if word],  # an empty one would stop at once
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
    # Whoever names a temperature gets that much variety and not less: no penalty, which would bend
    # even temperature zero away from the likeliest code, and the engine's own wide choice.
    return Sampling(temperature=request.temperature).model_dump()


def _turn(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": without_control_tokens(message.text)}


def without_control_tokens(text: str) -> str:
    """Break up what the engine would read as the end of a turn or the beginning of another.

    The engine looks for control tokens in the finished prompt, where it cannot tell ours from those
    in a file or in the output of a program, which could then speak as the system.
    """
    return _CONTROL_TOKEN.sub("< |", text)
