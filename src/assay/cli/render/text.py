"""Sanitizing and shortening of untrusted text for a terminal.

All text of models and programs passes through here: an escape sequence could overwrite a verdict,
and a bidirectional override could reorder a diff.
"""

import re
from typing import Final

_ESCAPE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, characters that reorder or hide text, and lone surrogates."""

_TAB: Final = 4
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F
_LONGEST_LINE: Final = 1000
_RAW_PER_SHOWN: Final = 20
"""Characters read for each one shown: the rest may be escape sequences."""


def visible(text: str) -> str:
    """Return the text with every invisible character made visible and none removed."""
    return _UNSEEN.sub(_picture, text).expandtabs(_TAB)


def plain(text: str) -> str:
    """Return the text without escape sequences, and with other characters made visible."""
    return visible(_ESCAPE.sub("", text))


def one_line(text: str, limit: int = 200) -> str:
    """Return the text as one harmless line of at most `limit` characters."""
    words = " ".join(plain(text[: limit * _RAW_PER_SHOWN].replace("\r", "\n")).split())
    return shortened(words, limit)


def shortened(text: str, limit: int) -> str:
    """Cut a text that is too long, and mark the cut."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"


def last_lines(text: str, count: int) -> list[str]:
    """Return the last lines of a program's output, as a terminal shows them."""
    tail = text[-count * _LONGEST_LINE :].replace("\r\n", "\n").rstrip("\n")
    lines = _ESCAPE.sub("", tail).split("\n")[-count:]
    return [visible(_overwritten(line))[:_LONGEST_LINE] for line in lines] if tail else []


def _overwritten(line: str) -> str:
    """Return the last state of a line with carriage returns, such as a progress bar."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < ord(" "):
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"\\u{code:04x}"
