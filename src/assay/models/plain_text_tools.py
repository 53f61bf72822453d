"""Plain-text tools for models without native tool calls: calls are written and parsed as text.

The system message describes the tools. Models with schema support answer with an object that has a
text and an optional tool call; all others end their reply with a block. Past calls and their
results are shown in the same format.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from assay.contracts.messages import (
    Message,
    ModelInfo,
    Reply,
    Request,
    StopReason,
    ToolCall,
    ToolSpec,
)
from assay.contracts.ports import OnText, ignore_text
from assay.models.model_bases import WrappedModel
from assay.models.stream_builder import arguments_to_send

_MARK: Final = "```call"
_BLOCK: Final = re.compile(
    r"^```call(?=[\s{])(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_NAME: Final = re.compile(r'"tool"\s*:\s*"([^"]+)"')
_UNREADABLE: Final = "unreadable_call"
_NONE: Final = "none"
_BY_BLOCK: Final = f"""\
To use one, end your reply with a block like this, and write nothing after it:
{_MARK}
{{"tool": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
```
You are then told its result. Use no other names. When no tool is needed, reply without a block."""
_BY_SCHEMA: Final = f"""\
Reply with a JSON object: "say" is what you say, "tool" is the name of the tool to use, or "{_NONE}"
when none is needed, "arguments" are its arguments. You are then told its result."""


class PlainTextToolsModel(WrappedModel):
    """A model with tool calls as text. Native calls in a reply stay unchanged."""

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        if not _is_about_tools(request):
            return await self._model.reply(request, on_text=on_text)
        if not request.tools:
            return await self._model.reply(_in_words(request, ""), on_text=on_text)
        if _fits_schema(request, self.info):
            return await self._by_schema(request, on_text)
        listener = _UntilCall(on_text)
        reply = await self._model.reply(_in_words(request, _BY_BLOCK), on_text=listener)
        listener.end()
        text = reply.message.text
        calls = [_read_call(found[1]) for found in _BLOCK.finditer(text)]
        return _with_calls(reply, text[: _first_call(text)], calls, request)

    async def _by_schema(self, request: Request, on_text: OnText) -> Reply:
        """Request an object. Its text is passed on when it is complete: until then it is JSON."""
        asked = replace(_in_words(request, _BY_SCHEMA), json_schema=_schema(request.tools))
        reply = await self._model.reply(asked)
        said, calls = _read_object(reply.message.text)
        if said:
            on_text(said)
        return _with_calls(reply, said, calls, request)


def _is_about_tools(request: Request) -> bool:
    past = any(message.tool_calls or message.role == "tool" for message in request.messages)
    return past or bool(request.tools)


def _fits_schema(request: Request, info: ModelInfo) -> bool:
    """Return whether Assay may choose the format of the reply."""
    return info.supports_json_schema and request.json_schema is None and not request.prefill


def _schema(tools: tuple[ToolSpec, ...]) -> dict[str, Any]:
    forms = [_form(tool.name, _arguments_schema(tool)) for tool in tools]
    nothing: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"anyOf": [*forms, _form(_NONE, nothing)]}


def _form(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    properties = {"say": {"type": "string"}, "tool": {"const": tool}, "arguments": dict(arguments)}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _arguments_schema(tool: ToolSpec) -> Mapping[str, Any]:
    # A reference starts at the root, which is elsewhere now.
    if '"$ref"' in json.dumps(dict(tool.parameters)):
        return {"type": "object"}
    return tool.parameters


def _in_words(request: Request, how: str) -> Request:
    """Convert tools, past calls and their results to text in the messages."""
    names = {call.id: call.name for message in request.messages for call in message.tool_calls}
    told: list[Message] = []
    for message in request.messages:
        words = _message_in_words(message, names, how)
        # Many chat templates require alternating sides, and a tool result becomes a user message.
        if told and told[-1].role == words.role == "user":
            told[-1] = replace(
                told[-1],
                text=f"{told[-1].text}\n\n{words.text}",
                pictures=told[-1].pictures + words.pictures,
            )
        else:
            told.append(words)
    if request.tools:
        told = _with_instructions(told, _instructions(request.tools, how))
    return replace(request, messages=tuple(told), tools=())


def _instructions(tools: tuple[ToolSpec, ...], how: str) -> str:
    known = "\n".join(
        f"- {tool.name}: {tool.description} Arguments: {json.dumps(dict(tool.parameters))}"
        for tool in tools
    )
    return f"You can use these tools:\n{known}\n\n{how}"


def _with_instructions(messages: list[Message], instructions: str) -> list[Message]:
    """Add the instructions to the system message, so that the first message stays constant."""
    if messages and messages[0].role == "system":
        first = replace(messages[0], text=f"{messages[0].text}\n\n{instructions}")
        return [first, *messages[1:]]
    return [Message(role="system", text=instructions), *messages]


def _message_in_words(message: Message, names: Mapping[str, str], how: str) -> Message:
    if message.role == "tool":
        name = names.get(message.answers, "the tool")
        return Message(role="user", text=f"Result of {name}:\n{message.text}")
    if not message.tool_calls:
        return message
    if how == _BY_SCHEMA:
        first, *others = message.tool_calls
        objects = [_written(first, say=message.text), *map(_written, others)]
        return Message(role="assistant", text="\n".join(objects))
    blocks = [f"{_MARK}\n{_written(call)}\n```" for call in message.tool_calls]
    return Message(role="assistant", text="\n".join([message.text.rstrip(), *blocks]).lstrip())


def _written(call: ToolCall, **before: str) -> str:
    fields = {**before, "tool": call.name, "arguments": arguments_to_send(call)}
    return json.dumps(fields, ensure_ascii=False)


def _with_calls(reply: Reply, text: str, calls: list[ToolCall], request: Request) -> Reply:
    native = reply.message.tool_calls
    named = tuple(
        replace(call, id=f"call-{len(request.messages)}-{place}")
        for place, call in enumerate(calls)
    )
    ended = reply.stop_reason is StopReason.ENDED and bool(named)
    return replace(
        reply,
        message=replace(reply.message, text=text, tool_calls=native or named),
        stop_reason=StopReason.TOOL_CALLS if ended else reply.stop_reason,
    )


def _read_object(text: str) -> tuple[str, list[ToolCall]]:
    """Return the text and the call of an object; text that is not an object is the reply."""
    fields = _object_in(text)
    if fields is None or not isinstance(fields.get("tool"), str):
        return text, []
    said = str(fields.get("say", ""))
    return said, [] if fields["tool"] == _NONE else [_call(fields, text)]


def _read_call(written: str) -> ToolCall:
    fields = _object_in(written)
    if fields is None or not isinstance(fields.get("tool"), str):
        found = _NAME.search(written)
        name = found[1] if found else _UNREADABLE
        return ToolCall(id="", name=name, arguments=None, written=written.strip())
    return _call(fields, written)


def _call(fields: Mapping[str, Any], written: str) -> ToolCall:
    arguments: object = fields.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(id="", name=fields["tool"], arguments=None, written=written.strip())
    known = cast("dict[str, Any]", arguments)
    return ToolCall(id="", name=fields["tool"], arguments=known, written=json.dumps(known))


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        found: object = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _first_call(text: str) -> int:
    found = _BLOCK.search(text)
    return found.start() if found else len(text)


class _UntilCall:
    """Passes text on up to the first block; holds back text that may start one."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._line = ""
        """The current line so far."""
        self._told = 0
        """How much of the line was passed on."""
        self._in_block = False

    def __call__(self, text: str) -> None:
        for piece in text.splitlines(keepends=True):
            self._hear(piece)

    def _hear(self, piece: str) -> None:
        self._line += piece
        self._in_block = self._in_block or _BLOCK.match(self._line) is not None
        if not _MARK.startswith(self._line):
            self._tell()
        if self._line.endswith("\n"):
            self._line, self._told = "", 0

    def end(self) -> None:
        """Pass on the held text that did not become a block."""
        self._tell()

    def _tell(self) -> None:
        untold = self._line[self._told :]
        if untold and not self._in_block:
            self._on_text(untold)
        self._told = len(self._line)
