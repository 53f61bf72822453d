"""Makes text of models and programs harmless to a terminal, and short enough for it.

Nothing that comes from outside reaches a terminal except through here: an escape sequence could
write over a verdict, and a bidirectional override could make a diff read backwards.
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
"""What a terminal obeys instead of showing, what reorders or hides text, and half characters."""

_TAB: Final = 4
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F
_LONGEST_LINE: Final = 1000
_RAW_PER_SHOWN: Final = 20
"""How many characters are looked at for one that is shown: the rest may be escape sequences."""


def visible(text: str) -> str:
    """Return the text with everything unseen in it made seen. Nothing is taken away."""
    return _UNSEEN.sub(_picture, text).expandtabs(_TAB)


def plain(text: str) -> str:
    """Return the text without escape sequences, and with other unseen characters made seen."""
    return visible(_ESCAPE.sub("", text))


def one_line(text: str, limit: int = 200) -> str:
    """Return the text as one harmless line of at most `limit` characters."""
    words = " ".join(plain(text[: limit * _RAW_PER_SHOWN].replace("\r", "\n")).split())
    return shortened(words, limit)


def shortened(text: str, limit: int) -> str:
    """Cut a text that is too long, and show that it was."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"


def last_lines(text: str, count: int) -> list[str]:
    """Return the end of what a program printed, as a terminal would have shown it."""
    tail = text[-count * _LONGEST_LINE :].replace("\r\n", "\n").rstrip("\n")
    lines = _ESCAPE.sub("", tail).split("\n")[-count:]
    return [visible(_overwritten(line))[:_LONGEST_LINE] for line in lines] if tail else []


def _overwritten(line: str) -> str:
    """Return what carriage returns leave of a line: the last state of a progress bar."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < ord(" "):
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"\\u{code:04x}"
