"""Stream builder: collects pieces of text and of tool calls into one `Reply`.

Provider state is the text that a provider needs back with a past turn; it is opaque for others.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from assay.contracts.messages import Message, Reply, Request, StopReason, ToolCall, Usage
from assay.contracts.ports import OnText

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


CALLS = "calls"
"""Where a message's state has the states of its calls, in their order."""


@dataclass(slots=True, kw_only=True)
class _CallDraft:
    id: str = ""
    name: str = ""
    written: str = ""
    state: object = None


class ReplyDraft:
    """The reply so far. The listener receives text immediately."""

    def __init__(
        self, request: Request, on_text: OnText, *, prefill: str = "", unsent: str = ""
    ) -> None:
        self.request = request
        self._on_text = on_text
        self._beginning = prefill
        self._repeatable = unsent
        """The end of the prefill if it was not sent: the model may repeat it."""
        self._text: list[str] = []
        self._calls: dict[object, _CallDraft] = {}
        self.stop_reason: StopReason | None = None
        """None until the reply is complete: a reply without a stop reason broke off."""
        self.announced: StopReason | None = None
        """The stop reason of a provider that sends it before the end of the reply."""
        self.model = ""
        self.state: dict[str, Any] = {}
        """The provider's state for the whole turn, by the names of the wire format."""
        self.input_tokens = 0
        self.cached_input_tokens = 0
        self.cache_write_tokens = 0
        self.output_tokens = 0
        self.reasoning_tokens = 0

    def add_text(self, text: str) -> None:
        """Add the next piece of text. The prefill is passed on before the first one."""
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
        """Add the next piece of the tool call with this key.

        `state` is the provider's state for this call, as JSON.
        """
        call = self._calls.setdefault(key, _CallDraft())
        if id and call.id and id != call.id:
            # Some servers number all calls as the first; a new id still means a new call.
            self._calls[(key, len(self._calls))] = self._calls.pop(key)
            call = self._calls.setdefault(key, _CallDraft())
        call.id = id or call.id
        call.name = name or call.name
        call.written += written
        call.state = state or call.state

    def finish(self, model: str, stop_reason: StopReason, *, by: str) -> Reply:
        """Return the complete reply; `by` can read its state."""
        self.add_text("")
        calls = tuple(
            self._finished(call, place) for place, call in enumerate(self._calls.values())
        )
        if self._is_cut(calls, stop_reason):
            stop_reason = StopReason.LENGTH
        if calls and stop_reason is StopReason.LENGTH and not calls[-1].written.strip():
            # Cut before its arguments, so it is not a call without arguments.
            calls = (*calls[:-1], replace(calls[-1], arguments=None))
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
                cache_write_tokens=self.cache_write_tokens,
                output_tokens=self.output_tokens,
                reasoning_tokens=self.reasoning_tokens,
                calls=1,
            ),
            model=self.model or model,
        )

    def _is_cut(self, calls: tuple[ToolCall, ...], stop_reason: StopReason) -> bool:
        """Return whether a reply used up its length, although its server names another reason."""
        limit = self.request.max_output_tokens
        if stop_reason is StopReason.FILTERED or limit is None or self.output_tokens < limit:
            return False
        return not (calls or self._text) or any(call.arguments is None for call in calls)

    def _sealed(self, by: str) -> str:
        # Without a call the turn is over, and the provider does not need its thoughts.
        if not self._calls:
            return ""
        states = [call.state for call in self._calls.values()]
        return seal(by, {**self.state, CALLS: states if any(states) else None})

    def _finished(self, call: _CallDraft, place: int) -> ToolCall:
        # Not every server sends ids. Turns only grow, so this one is unique.
        made_up = f"call-{len(self.request.messages)}-{place}"
        return ToolCall(
            id=call.id or made_up,
            name=call.name,
            arguments=arguments_in(call.written),
            written=call.written,
        )


def arguments_in(written: str) -> Mapping[str, Any] | None:
    """Parse the arguments that a model wrote: a JSON object, nothing, or invalid text."""
    if not written.strip():
        return {}
    try:
        arguments: object = json.loads(written)
    except ValueError:
        return None
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None


def arguments_to_send(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a past call as an object, because servers reject anything else."""
    if call.arguments is None:
        return {"not_valid_json": call.written}
    return dict(call.arguments)


def call_states(state: Mapping[str, Any], count: int) -> list[Any]:
    """Return the states of a message's calls, one per call."""
    known = state.get(CALLS)
    states = cast("list[Any]", known) if isinstance(known, list) else []
    return (states + [None] * count)[:count]


def system_text(request: Request) -> str:
    """Return all system messages as one text, for formats with a separate field."""
    return "\n\n".join(message.text for message in request.messages if message.role == "system")
