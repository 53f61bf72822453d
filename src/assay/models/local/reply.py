"""Reply of the engine during streaming, converted to the contract's types."""

from assay.contracts.errors import ContextOverflowError, ModelRefusedError, ModelUnavailableError
from assay.contracts.messages import Message, Reply, StopReason, Usage
from assay.contracts.ports import OnText
from assay.models.local.messages import EngineEnd, EngineFault, EngineMessage


class Answer:
    """The text so far, passed to the listener as it comes."""

    def __init__(self, prefill: str, on_text: OnText) -> None:
        self._prefill = prefill
        self._on_text = on_text
        self._pieces: list[str] = []
        self._end = EngineEnd()

    def hear(self, message: EngineMessage) -> bool:
        """Process one message; True if it was the last.

        Raises:
            ModelRefusedError: If the engine rejects the request.
            ModelUnavailableError: If the engine failed, and a retry may succeed.
        """
        if message.error:
            raise _as_promised(message.error)
        if message.text or message.end:
            self._tell(message.text)
        if message.end:
            self._end = message.end
        return message.end is not None

    def _tell(self, text: str) -> None:
        # The prefill is sent with the first word, when a reply is certain.
        for piece in (self._prefill, text):
            if piece:
                self._pieces.append(piece)
                self._on_text(piece)
        self._prefill = ""

    def as_reply(self, model: str) -> Reply:
        """Return the whole reply after the last message."""
        length = self._end.finish == "length"
        return Reply(
            message=Message(role="assistant", text="".join(self._pieces)),
            stop_reason=StopReason.LENGTH if length else StopReason.ENDED,
            usage=_usage(self._end),
            model=model,
        )


def _usage(end: EngineEnd) -> Usage:
    if end.usage is None:
        return Usage(calls=1)
    return Usage(
        input_tokens=end.usage.prompt_tokens,
        cached_input_tokens=end.usage.prompt_tokens_details.cached_tokens,
        output_tokens=end.usage.completion_tokens,
        calls=1,
    )


def _as_promised(fault: EngineFault) -> ModelRefusedError | ModelUnavailableError:
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
