"""Removal of instructions from stored text: a lesson is data, and a model must not obey it.

Lessons come from error messages, diffs and imported files, which may have any author.
"""

import re
from typing import Final

LEFT_OUT: Final = "[instruction left out]"

_INSTRUCTION: Final = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass|skip|do\s+not\s+follow|don't\s+follow)\b.{0,60}"
    r"\b(?:instructions?|prompts?|rules?|guidelines?|guardrails?|directives?|messages?|polic(?:y|ies))\b"
    r"|\bsystem\s+prompt\b|\bnew\s+instructions?\b|\bprevious\s+instructions?\b"
    r"|\byou\s+are\s+now\b|\bfrom\s+now\s+on\b|\bpretend\s+(?:to\s+be|that\s+you)\b|\bact\s+as\s+an?\b"
    r"|\byou\s+(?:must|should|have\s+to|will)\s+(?:now\s+|always\s+|immediately\s+)*"
    r"(?:obey|follow|run|execute|delete|remove|send|upload|post|reveal|print|output|disable|download)\b"
    r"|\b(?:reveal|leak|send|upload|post|exfiltrate)\b.{0,60}"
    r"\b(?:keys?|secrets?|tokens?|passwords?|credentials?|environment|\.env)\b"
    r"|<\|?/?(?:im_start|im_end|system|user|assistant|endoftext)\b|\[/?INST\]|<</?SYS>>"
    r"|^\W*(?:system|assistant|developer)\s*:|\#{2,}\s*(?:instructions?|system)\b"
    r"|\brm\s+-\w*[rf]\w*\s+\S|\b(?:curl|wget)\b[^|]*\|\s*(?:sudo\s+)?\w*sh\b",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"(?<=[.!?;])\s+|\n+")


def without_instructions(text: str) -> str:
    """Return the text with every sentence replaced that gives instructions to its reader."""
    if not _INSTRUCTION.search(text):
        return text
    parts = _SENTENCE.split(text)
    breaks = [*_SENTENCE.findall(text), ""]
    kept = [LEFT_OUT if _INSTRUCTION.search(part) else part for part in parts]
    whole = "".join(part + gap for part, gap in zip(kept, breaks, strict=True))
    # Instructions that span several sentences are removed as a whole.
    return LEFT_OUT if _INSTRUCTION.search(whole) else whole
