"""The embedded model as a `Model`: one request at a time, in a process that starts on demand.

Converts requests into the engine's form of a chat completion, and its stream into a `Reply`.
"""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from assay.asyncx.owned_context import open_task_group
from assay.contracts.errors import (
    ContextOverflowError,
    ModelRefusedError,
    ModelUnavailableError,
    UsageError,
)
from assay.contracts.messages import ModelInfo, Price, Reply, Request, StopReason
from assay.contracts.ports import OnText, ignore_text
from assay.models.local.llama_process import (
    Engine,
    EngineFault,
    EngineLostError,
    EngineMessage,
    EngineOwner,
    EnginePlan,
    EngineStartError,
    find_engine,
    worthwhile_threads,
)
from assay.models.local.weights import Sampling
from assay.models.stream_builder import ReplyDraft

_SEEDS = 2**32 - 1
"""The engine uses 32 bits, and takes the largest number for no seed."""
_CONTROL_TOKEN = re.compile(r"<\|(?=[a-z_]+\|>)")


def chat_body(request: Request, sampling: Sampling, *, info: ModelInfo) -> dict[str, Any]:
    """Return the request in the engine's form."""
    messages = [
        {"role": message.role, "content": without_control_tokens(message.text)}
        for message in request.messages
    ]
    if request.prefill:
        # The engine continues a final assistant turn.
        messages.append({"role": "assistant", "content": request.prefill})
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": info.output_limit(request),
        "stop": [word for word in request.stop if word],  # an empty one would stop immediately
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "cache_prompt": True,
    }
    # A requested temperature gives exactly that variety: no penalty, which would distort even
    # temperature zero, and the engine's own wide selection.
    variety = sampling if request.temperature is None else Sampling(temperature=request.temperature)
    body |= variety.model_dump()
    if request.seed is not None:
        body["seed"] = request.seed % _SEEDS
    if request.json_schema is not None:
        body["json_schema"] = dict(request.json_schema)
    return body


def without_control_tokens(text: str) -> str:
    """Break up text that the engine would read as the end or the start of a turn.

    The engine searches the finished prompt for control tokens. It cannot distinguish Assay's own
    from those in a file or in program output, which could then act as the system.
    """
    return _CONTROL_TOKEN.sub("< |", text)


def take_message(message: EngineMessage, draft: ReplyDraft) -> bool:
    """Add one message to the reply; True if it was the last.

    Raises:
        ModelRefusedError: If the engine rejects the request.
        ModelUnavailableError: If the engine failed, and a retry may succeed.
    """
    if message.error:
        raise _explain(message.error)
    if message.text or message.end:
        draft.add_text(message.text)
    if message.end is None:
        return False
    length = message.end.finish == "length"
    draft.stop_reason = StopReason.LENGTH if length else StopReason.ENDED
    if usage := message.end.usage:
        draft.input_tokens = usage.prompt_tokens
        draft.cached_input_tokens = usage.prompt_tokens_details.cached_tokens
        draft.output_tokens = usage.completion_tokens
    return True


def _explain(fault: EngineFault) -> ModelRefusedError | ModelUnavailableError:
    match fault.type:
        case "exceed_context_size_error":
            return ContextOverflowError(
                f"the request has {fault.n_prompt_tokens} tokens,"
                f" and the embedded model reads fewer than {fault.n_ctx}",
                hint="send less",
            )
        case "server_error" | "unavailable_error":
            return ModelUnavailableError(f"the embedded model failed: {fault.message}")
        case _:
            return ModelRefusedError(
                f"the embedded model does not take the request: {fault.message}"
            )


_SILENCE_S = 300.0
"""While it reads, a message comes after every batch, and while it writes, with every token."""
_FAREWELL_S = 2.0
_MAGIC = b"GGUF"


@asynccontextmanager
async def open_local_model(
    path: Path,
    *,
    name: str,
    context_tokens: int = 8192,
    sampling: Sampling | None = None,
    threads: int | None = None,
    idle_s: float = 300.0,
) -> AsyncGenerator["LocalModel"]:
    """Open the model; its process starts with the first request and ends with the context.

    `name` is without the prefix `local:`. Memory for all of `context_tokens`, input and output
    together, is allocated. `sampling` applies to requests without a temperature. Without `threads`,
    the process uses the number of useful cores. After `idle_s` without a request it ends, and its
    memory is freed.

    Raises:
        MissingExtraError: If the engine is not installed.
        UsageError: If the engine cannot read the file.
    """
    find_engine()
    check_weights_file(path)
    plan = EnginePlan(
        model_path=path, context_tokens=context_tokens, threads=threads or worthwhile_threads()
    )
    model = LocalModel(plan, name=name, sampling=sampling or Sampling(), idle_s=idle_s)
    async with open_task_group() as tasks:
        tasks.start_soon(model.end_when_idle)
        try:
            yield model
        finally:
            await model.close()


def check_weights_file(path: Path) -> None:
    """Check that the engine can read this type of file.

    Raises:
        UsageError: If it cannot.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(len(_MAGIC))
    except OSError as error:
        raise UsageError(
            f"cannot read the model {str(path)!r}: {error.strerror}",
            hint="name a GGUF file, or run `assay models pull`",
        ) from error
    if beginning != _MAGIC:
        raise UsageError(f"{str(path)!r} is not a GGUF file", hint="run `assay models pull`")


class LocalModel(EngineOwner):
    """A model in a child process."""

    def __init__(self, plan: EnginePlan, *, name: str, sampling: Sampling, idle_s: float) -> None:
        super().__init__(plan)
        self._name = f"local:{name}"
        self._sampling = sampling
        self._idle_s = idle_s
        self._last_used = 0.0
        self._info = ModelInfo(
            context_tokens=plan.context_tokens,
            max_output_tokens=plan.context_tokens // 2,
            tool_calls=False,
            price=Price(input_usd=0.0, output_usd=0.0),
            supports_prefill=True,
            supports_json_schema=True,
            supports_seed=True,
            local=True,
            small=True,
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def reply(self, request: Request, *, on_text: OnText = ignore_text) -> Reply:
        """Answer one request; others wait for their turn."""
        if request.tools:
            raise ModelRefusedError(
                f"{self.name} makes no native tool calls", hint="use the plain-text protocol"
            )
        body = chat_body(request, self._sampling, info=self._info)
        async with self._turn:
            try:
                draft = ReplyDraft(request, on_text, prefill=request.prefill)
                await self._ask(body, draft)
            except EngineStartError as error:
                raise ModelUnavailableError(
                    f"the embedded model does not start: {error}",
                    hint="close what needs much memory, or run `assay models pull` and try again",
                    not_charged=True,
                ) from error
            except EngineLostError as error:
                await self.close()
                raise ModelUnavailableError(
                    f"the embedded model broke off: {error}",
                    hint="ask again: it starts again",
                    not_charged=True,
                ) from error
            finally:
                self._last_used = anyio.current_time()
        return draft.finish(self.name, draft.stop_reason or StopReason.ENDED, by=self.name)

    async def _ask(self, body: Mapping[str, Any], draft: ReplyDraft) -> None:
        number = next(self._numbers)
        engine = await self._hand_over(number, body)
        ended = False
        try:
            while not ended:
                message = await engine.receive(timeout_s=_SILENCE_S)
                # Skip the remaining messages of a cancelled request.
                if message.of == number:
                    ended = take_message(message, draft)
        except (EngineLostError, ModelRefusedError, ModelUnavailableError):
            ended = True  # the engine reported it, or has exited
            raise
        finally:
            if not ended:
                await self._give_up(engine, number)

    async def _hand_over(self, number: int, body: Mapping[str, Any]) -> Engine:
        """Send the request to an engine; replaces one that has exited since the last request."""
        for engine in (self._engine, None):
            fresh = engine is None
            try:
                engine = engine or await self.start()  # noqa: PLW2901 - the engine in use
                await engine.send({"ask": number, "body": body})
                while (await engine.receive(timeout_s=_SILENCE_S)).taken != number:
                    pass
            except EngineLostError:
                await self.close()
                if fresh:
                    raise
            except BaseException:
                # The request may be half sent, so the process cannot be used again.
                await self.close()
                raise
            else:
                return engine
        raise AssertionError("a fresh engine takes the request or is lost")

    async def _give_up(self, engine: Engine, number: int) -> None:
        """Cancel a reply that no caller waits for."""
        with anyio.CancelScope(shield=True):
            try:
                with anyio.fail_after(_FAREWELL_S):
                    await engine.send({"drop": number})
            except (EngineLostError, TimeoutError):
                await self.close()

    async def end_when_idle(self) -> None:
        """End the process after the idle time."""
        while True:
            await self.started.wait()
            await anyio.sleep_until(self._last_used + self._idle_s)
            async with self._turn:
                if anyio.current_time() >= self._last_used + self._idle_s:
                    await self.close()
                    self.started = anyio.Event()
