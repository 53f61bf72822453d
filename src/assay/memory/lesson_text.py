"""Lesson text: one line from the diff that fixed a failure, short enough for a prompt.

Instructions are removed from stored text: a lesson is data, and a model must not obey it.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Final

_MAX_LINE: Final = 320
_MAX_CODE: Final = 80
_MAX_CAUSE: Final = 90
_MOST_CHANGES: Final = 2
"""For example an import and the line that needs it."""
_MOST_LINES: Final = 400
_ALIKE: Final = 0.5
"""The similarity from which a line counts as a changed version of another."""
_WORD: Final = re.compile(r"[A-Za-z_]\w+")
_IMPORT: Final = re.compile(
    r"\s*(?:from\s+\S+\s+import\b|import\b|use\b|#include\b|const\s.*require\()"
)
_SAYS_NOTHING: Final = re.compile(
    r"[\s{}()\[\];,:]*|\s*(?:#|//|/\*|\*|\"\"\"|''').*|\s*(?:pass|\.\.\.)"
)
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")


@dataclass(frozen=True, slots=True)
class _Change:
    path: str
    old: str
    new: str
    likeness: float


def one_line(text: str, limit: int = _MAX_LINE) -> str:
    """Return the text as one line without characters that could break a terminal or a prompt."""
    line = " ".join(_UNSEEN.sub(" ", text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def lesson_of(signature: str, message: str, fix: str) -> str:
    """Return how to fix a failure, derived from the diff that fixed it; empty if unknown."""
    changes = _changes(fix)
    if not changes:
        return ""
    about = frozenset(_WORD.findall(f"{signature} {message}"))
    ranked = sorted(changes, key=lambda change: -_relevance(change, about))
    cause = one_line(message or signature, _MAX_CAUSE)
    advice = "; ".join(dict.fromkeys(_advice(change) for change in ranked[:_MOST_CHANGES]))
    return one_line(f"{cause} -> {advice}")


def _changes(fix: str) -> list[_Change]:
    changes: list[_Change] = []
    path, old, new = "", list[str](), list[str]()
    lines = fix.splitlines()[:_MOST_LINES]
    for number, line in enumerate([*lines, "@@"]):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        header = line.startswith("--- ") and after.startswith("+++ ")
        if header or not line.startswith(("+", "-")):
            changes.extend(_paired(path, old, new))
            old, new = [], []
        if header:
            path = after[4:].removeprefix("b/")
        elif line.startswith("-"):
            old.append(line[1:])
        elif line.startswith("+") and not _is_second_header(lines, number):
            new.append(line[1:])
    return changes


def _is_second_header(lines: list[str], number: int) -> bool:
    return number > 0 and lines[number].startswith("+++ ") and lines[number - 1].startswith("--- ")


def _paired(path: str, old: list[str], new: list[str]) -> list[_Change]:
    """Find for each new line the old line that it replaces, if there is one."""
    left = [line for line in old if not _SAYS_NOTHING.fullmatch(line)]
    changes: list[_Change] = []
    for line in new:
        if _SAYS_NOTHING.fullmatch(line):
            continue
        likeness, origin = max(((_likeness(line, other), other) for other in left), default=(0, ""))
        if likeness >= _ALIKE:
            left.remove(origin)
            changes.append(_Change(path, origin.strip(), line.strip(), likeness))
        else:
            changes.append(_Change(path, "", line.strip(), 0.0))
    changes.extend(_Change(path, line.strip(), "", 0.0) for line in left)
    return [change for change in changes if change.old != change.new]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.strip(), other.strip(), autojunk=False).ratio()


def _relevance(change: _Change, about: frozenset[str]) -> float:
    # Text on both sides did not fix the failure.
    words = set(_WORD.findall(change.old)) ^ set(_WORD.findall(change.new))
    named = len(words & about) / (1 + len(words)) * 4
    imports = 0.5 if _IMPORT.match(change.new) else 0.0
    removed = -0.5 if not change.new else 0.0
    return named + imports + removed + change.likeness


def _advice(change: _Change) -> str:
    where = f" in {change.path}" if change.path and change.path != "/dev/null" else ""
    old, new = _code(change.old), _code(change.new)
    if old and new:
        return f"write {new} instead of {old}{where}"
    return f"add {new}{where}" if new else f"leave out {old}{where}"


def _code(line: str) -> str:
    return f"`{one_line(line, _MAX_CODE)}`" if line else ""


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
