"""A reply while it arrives: pieces of text and of tool calls in, one `Reply` out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from assay.contracts.messages import (
    Message,
    Reply,
    Request,
    StopReason,
    ToolCall,
    Usage,
)
from assay.contracts.ports import OnText
from assay.models.provider_state import seal

CALLS = "calls"
"""Where the states of the calls are in a message's state, in their order."""


@dataclass(slots=True, kw_only=True)
class _CallDraft:
    id: str = ""
    name: str = ""
    written: str = ""
    state: object = None


class ReplyDraft:
    """What has come so far. Text is told to the listener at once."""

    def __init__(
        self, request: Request, on_text: OnText, *, prefill: str = "", unsent: str = ""
    ) -> None:
        self._turn = len(request.messages)
        self._on_text = on_text
        self._beginning = prefill
        self._repeatable = unsent
        """The end of the prefill, if it was not sent: the model may write it by itself."""
        self._text: list[str] = []
        self._calls: dict[object, _CallDraft] = {}
        self.stop_reason: StopReason | None = None
        """None until the provider said why it stopped: a reply without that broke off."""
        self.model = ""
        self.state: dict[str, Any] = {}
        """What the provider wants to see again with the whole turn, by the wire's own names."""
        self.input_tokens = 0
        self.cached_input_tokens = 0
        self.output_tokens = 0

    def add_text(self, text: str) -> None:
        """Take the next piece. What the reply was to begin with is told before the first."""
        while text and self._repeatable and text[0] == self._repeatable[0]:
            text, self._repeatable = text[1:], self._repeatable[1:]
        if text:
            self._repeatable = ""
        for piece in (self._beginning, text):
            if piece:
                self._text.append(piece)
                self._on_text(piece)
        self._beginning = ""

    def add_call(
        self,
        key: object,
        *,
        id: str = "",  # noqa: A002 - as in `ToolCall`
        name: str = "",
        written: str = "",
        state: object = None,
    ) -> None:
        """Take the next piece of the tool call that the wire knows by this key.

        `state` is what the provider wants to see again with this call, as JSON can hold it.
        """
        call = self._calls.setdefault(key, _CallDraft())
        if id and call.id and id != call.id:
            # Some servers count all calls as the first; a new id is a new call all the same.
            self._calls[(key, len(self._calls))] = self._calls.pop(key)
            call = self._calls.setdefault(key, _CallDraft())
        call.id = id or call.id
        call.name = name or call.name
        call.written += written
        call.state = state or call.state

    def finish(self, model: str, stop_reason: StopReason, *, by: str) -> Reply:
        """Make the reply of what came, now that nothing more will; `by` may read its state."""
        self.add_text("")
        calls = tuple(
            self._finished(call, place) for place, call in enumerate(self._calls.values())
        )
        if calls and stop_reason is StopReason.ENDED:
            stop_reason = StopReason.TOOL_CALLS
        return Reply(
            message=Message(
                role="assistant",
                text="".join(self._text),
                tool_calls=calls,
                provider_state=self._sealed(by),
            ),
            stop_reason=stop_reason,
            usage=Usage(
                input_tokens=self.input_tokens,
                cached_input_tokens=self.cached_input_tokens,
                output_tokens=self.output_tokens,
                calls=1,
            ),
            model=self.model or model,
        )

    def _sealed(self, by: str) -> str:
        # Without a call the turn is over, and nobody insists on what was thought in it.
        if not self._calls:
            return ""
        states = [call.state for call in self._calls.values()]
        return seal(by, {**self.state, CALLS: states if any(states) else None})

    def _finished(self, call: _CallDraft, place: int) -> ToolCall:
        # Not every server gives ids. Turns only grow, so this one is new to the conversation.
        made_up = f"call-{self._turn}-{place}"
        return ToolCall(
            id=call.id or made_up,
            name=call.name,
            arguments=arguments_in(call.written),
            written=call.written,
        )


def arguments_in(written: str) -> Mapping[str, Any] | None:
    """Read what a model wrote as arguments: a JSON object, nothing at all, or something broken."""
    if not written.strip():
        return {}
    try:
        arguments: object = json.loads(written)
    except ValueError:
        return None
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None


def arguments_to_send(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a past call as an object, because servers refuse anything else."""
    if call.arguments is None:
        return {"not_valid_json": call.written}
    return dict(call.arguments)


def call_states(state: Mapping[str, Any], count: int) -> list[Any]:
    """Return the states of a message's calls, as many as it has calls."""
    known = state.get(CALLS)
    states = cast("list[Any]", known) if isinstance(known, list) else []
    return (states + [None] * count)[:count]


def system_text(request: Request) -> str:
    """Return all system messages as one text, for formats that keep it apart."""
    return "\n\n".join(message.text for message in request.messages if message.role == "system")
