"""A model for tests of what stands on one: it says what it is told and keeps what it was asked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.contracts.errors import AssayError
from assay.contracts.messages import (
    Message,
    ModelInfo,
    Price,
    Reply,
    Request,
    StopReason,
    ToolCall,
    Usage,
)
from assay.contracts.ports import OnText, ignore_text

INFO = ModelInfo(
    context_tokens=128_000,
    max_output_tokens=8_192,
    tool_calls=True,
    price=Price(input_usd=0.0, output_usd=0.0),
)
"""Those of a large model that costs nothing."""


def says(
    text: str, *, stop_reason: StopReason = StopReason.ENDED, usage: Usage | None = None
) -> Reply:
    """Build a reply of text alone."""
    return Reply(
        message=Message(role="assistant", text=text),
        stop_reason=stop_reason,
        usage=usage or Usage(calls=1),
        model="scripted",
    )


def calls_tool(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    call_id: str = "call_1",
    text: str = "",
) -> Reply:
    """Build a reply that asks for one tool."""
    call = ToolCall(id=call_id, name=name, arguments=arguments or {})
    return Reply(
        message=Message(role="assistant", text=text, tool_calls=(call,)),
        stop_reason=StopReason.TOOL_CALLS,
        usage=Usage(calls=1),
        model="scripted",
    )


@dataclass(slots=True)
class ScriptedModel:
    """Answers with the next of its replies; an error among them is raised.

    Asked more often than there are replies, it fails the test.
    """

    replies: Iterable[Reply | AssayError]
    info: ModelInfo = INFO
    name: str = "scripted"
    asked: list[Request] = field(default_factory=list[Request])

    def __post_init__(self) -> None:
        self.replies = iter(self.replies)

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        self.asked.append(request)
        answer = next(iter(self.replies), None)
        if answer is None:
            raise AssertionError(f"asked {len(self.asked)} times, more often than was scripted")
        if isinstance(answer, AssayError):
            raise answer
        if answer.message.text:
            on_text(answer.message.text)
        return answer
