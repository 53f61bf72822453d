"""A turn as one text for chat front ends, which grows during the turn."""

from typing import Any, Final

from assay.contracts.chat import CellEnded
from assay.contracts.chat_history import Turn
from assay.server.api.schemas.sessions import text_of

_SHOWN_CHARS: Final = 4000
_FENCE: Final = "```"


class Telling:
    """Converts the events of a turn to pieces of its text, in order and each once.

    The model's text is streamed up to its first block of code. Whether that code runs is known only
    at the end of the step, and it decides the format of the step.
    """

    def __init__(self) -> None:
        self._before = ""
        """Separator between this step and the previous one."""
        self._heard = ""
        self._told = ""
        """Text of the current step."""

    def hear(self, event: dict[str, Any]) -> str:
        """Return the text to send now; often none."""
        if event["kind"] == "speech_arrived":
            self._heard += text_of(event["text"])
            return self._tell(_certain(self._heard))
        whole = _step(event)
        if not whole:
            return ""
        if not whole.startswith(self._told):
            self._end_step()
        piece = self._tell(whole)
        self._end_step()
        return piece

    def _tell(self, so_far: str) -> str:
        piece = so_far[len(self._told) :]
        if not piece:
            return ""
        if not self._told:
            piece = self._before + piece
        self._told = so_far
        return piece

    def _end_step(self) -> None:
        self._before = "\n\n" if self._told else self._before
        self._heard = self._told = ""


def _certain(heard: str) -> str:
    """Return the part of the model's text that no later text can change."""
    words = heard.lstrip().partition(_FENCE)[0]
    return words.rstrip("`").rstrip()


def whole_text(turn: Turn) -> str:
    """Return the text of a turn, equal to its streamed pieces."""
    pieces: list[str] = []
    thoughts, remarks = iter(turn.thoughts), iter(turn.remarks)
    for step in turn.steps:
        if isinstance(step, CellEnded):
            pieces.append(_begun(next(thoughts, ""), step.code, next(remarks, "")))
            pieces.append(_fenced("text", step.observation))
        else:
            pieces.append(_used(step.thought, step.tool, step.answer))
    pieces.append(text_of(turn.answer))
    return "\n\n".join(piece for piece in pieces if piece)


def _step(event: dict[str, Any]) -> str:
    match event["kind"]:
        case "cell_began":
            return _begun(event["thought"], event["code"], event.get("remark", ""))
        case "cell_ended":
            return _fenced("text", event["observation"])
        case "tool_used":
            return _used(event["thought"], event["tool"], event["answer"])
        case "turn_ended":
            return text_of(event["text"])
        case _:
            return ""


def _begun(thought: str, code: str, remark: str) -> str:
    parts = (thought, _fenced("python", code), remark)
    return text_of("\n\n".join(part for part in parts if part))


def _used(thought: str, tool: str, answer: str) -> str:
    told = f"*Used `{tool}`:*\n\n{_fenced('text', answer)}"
    return text_of(f"{thought}\n\n{told}" if thought else told)


def _fenced(language: str, text: str) -> str:
    if not text.strip():
        return ""
    text = text_of(text.rstrip())
    if len(text) > _SHOWN_CHARS:
        text = text[:_SHOWN_CHARS] + "\n…"
    fence = _FENCE
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
