"""Requests that the promises are checked with, and ways of asking them within a bounded time."""

from dataclasses import replace

import anyio

from assay.contracts.errors import AssayError
from assay.contracts.messages import Message, Reply, Request, ToolCall, ToolSpec
from assay.contracts.ports import Model, OnText, ignore_text

DEADLINE_S = 60.0
"""Generous, because real models are held to this too."""

QUESTION = Request(
    messages=(
        Message(role="system", text="Answer in one short sentence."),
        Message(role="user", text="Say hello to the world."),
    ),
    max_output_tokens=64,
)

WEATHER = ToolSpec(
    name="weather",
    description="Look up the weather in a place.",
    parameters={
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
    },
)

CONVERSATION = Request(
    messages=(
        Message(role="system", text="Be brief — and kind."),
        Message(role="user", text="What is the weather in Rome and in Łódź?"),
        Message(
            role="assistant",
            text="Let me see.",
            tool_calls=(
                ToolCall(id="call_1", name="weather", arguments={"place": "Rome"}),
                ToolCall(id="call_2", name="weather", arguments={"place": "Łódź"}),
            ),
        ),
        Message(role="tool", answers="call_1", text="sunny\n25 °C"),
        Message(role="tool", answers="call_2", text="rain"),
        Message(role="assistant", text="Sunny in Rome, rain in Łódź."),
        Message(role="user", text="And here?"),
    ),
    tools=(WEATHER,),
    max_output_tokens=64,
)


def with_weather() -> Request:
    """Return a request that comes with a tool."""
    return replace(QUESTION, tools=(WEATHER,))


async def ask(model: Model, request: Request = QUESTION, *, on_text: OnText = ignore_text) -> Reply:
    """Have a request answered, or fail."""
    with anyio.fail_after(DEADLINE_S):
        return await model.reply(request, on_text=on_text)


async def failure_of(model: Model, request: Request = QUESTION) -> AssayError:
    """Have a request fail, and return how."""
    try:
        reply = await ask(model, request)
    except AssayError as error:
        return error
    raise AssertionError(f"it should have failed, and answered {reply}")
